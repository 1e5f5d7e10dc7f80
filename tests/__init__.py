"""Tests, one package a product package; `support` and `conformance` are shared."""
