"""L1: pages in device (or engine) memory inside one inference worker."""
