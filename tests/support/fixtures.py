"""Fixtures that some tiers need, imported by their `conftest`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gate import Gate
from tests.support.knobs import hurry


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate for handlers of other processes, closed."""
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.close()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers inside the test look and extend often, however long the visibility timeout is."""
    hurry(monkeypatch.setattr)
