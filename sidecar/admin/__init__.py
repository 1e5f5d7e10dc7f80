"""Administration: invalidations with their fences, the fleet's members, and where pages are."""
