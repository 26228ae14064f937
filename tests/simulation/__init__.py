"""Thousands of interleavings of the shipping code, in virtual time, against a model of the server."""
