"""Tests of the worker: pure parts, and whole workers on a real server."""
