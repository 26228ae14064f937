"""Fixtures of the worker tests."""

from tests.support.fixtures import gate, hurried

__all__ = ["gate", "hurried"]
