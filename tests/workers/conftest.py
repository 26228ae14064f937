"""Fixtures of the worker tests."""

from functools import partial

import pytest

from tests.support.fixtures import gate, hurried
from workers.protocol.connection import reader_client

__all__ = ["gate", "hurried"]


@pytest.fixture
def for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reads block until somebody ends them."""
    monkeypatch.setattr("workers.loop.reading.BLOCK_MS", 3_600_000)
    monkeypatch.setattr("workers.loop.context.reader_client", partial(reader_client, block_ms=3_600_000))
