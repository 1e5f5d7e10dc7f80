"""L3: page records in Redis, shared by the fleet."""
