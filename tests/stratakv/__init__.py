"""Tests of the public face and the command."""
