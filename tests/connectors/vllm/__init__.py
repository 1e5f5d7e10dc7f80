"""Tests of the vLLM connector without vLLM: the engine's objects are imitated."""
