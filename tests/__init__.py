"""Tests of every package, the conformance suites and their support."""
