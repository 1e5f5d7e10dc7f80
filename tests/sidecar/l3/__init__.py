"""Tests of what the daemon does with L3."""
