"""The daemon: the only place where things are wired together."""
