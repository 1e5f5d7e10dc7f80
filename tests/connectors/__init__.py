"""Tests of the connectors to engines."""
