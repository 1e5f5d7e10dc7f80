"""Validity: the invalidation log, its rules and its follower."""
