"""Fixtures of the fault tests."""

from tests.support.fixtures import clock, gate, hurried

__all__ = ["clock", "gate", "hurried"]
