"""Tests with the real vLLM; run by the interpreter that has it."""
