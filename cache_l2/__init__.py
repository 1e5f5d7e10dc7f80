"""L2: host-memory pages of a node in one shared-memory arena, written by the sidecar, read by its workers."""
