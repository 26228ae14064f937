"""Fixtures of the fault tests."""

from tests.support.fixtures import gate, hurried

__all__ = ["gate", "hurried"]
