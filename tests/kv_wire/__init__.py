"""Tests of the wire: codec, error table, conversions, channel, generated code."""
