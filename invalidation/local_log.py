"""LocalLog: the invalidation log of one sidecar without a fleet, in its memory; same verbs, same bounds, same rules."""
