"""Fixtures of the worker tests."""

import pytest

from tests.support.fixtures import gate, hurried
from tests.workers.extending import note_extensions

__all__ = ["gate", "hurried"]


@pytest.fixture(autouse=True)
def _noted_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests.workers.extending` tells which deliveries were extended."""
    note_extensions(monkeypatch)
