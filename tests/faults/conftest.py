"""Fixtures of the fault tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.gate import Gate


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate for handlers of other processes, closed."""
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.close()
