"""Fixtures of the drill's tests."""

from tests.support.fixtures import clock

__all__ = ["clock"]
