"""Pure decisions shared by tiers: eviction, grants, admission, and load or recompute."""
