"""Tests of the whole project; see `tests/conftest.py` for the fixtures."""
