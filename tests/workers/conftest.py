"""Fixtures of the worker tests."""

import pytest

from tests.faults.knobs import hurry


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers look and extend often, however long the visibility timeout is."""
    hurry(monkeypatch.setattr)
