"""Following the invalidation log: choosing it, applying it to the arena, and vouching for what is served."""
