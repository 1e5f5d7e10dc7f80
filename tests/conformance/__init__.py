"""One suite an interface, run by every implementation of it."""
