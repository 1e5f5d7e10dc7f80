"""Connectors: each engine behind one file."""
