"""Tests of the pages in a worker's own memory."""
