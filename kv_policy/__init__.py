"""Pure decisions shared by tiers: eviction now; admission and load-or-recompute later."""
