"""Vocabulary that no tier may own: ids, namespaces, page keys, pad masks, layouts, records, outcomes."""
