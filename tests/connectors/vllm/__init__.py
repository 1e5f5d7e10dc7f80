"""Tests of the vLLM connector that need no vLLM."""
