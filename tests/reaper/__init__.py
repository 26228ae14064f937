"""Tests of the reaper's core: pure parts against models, the rest on a real Redis."""
