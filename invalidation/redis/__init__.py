"""The invalidation log on a Redis or Valkey server."""
