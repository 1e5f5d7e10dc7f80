"""Tests of the sidecar daemon."""
