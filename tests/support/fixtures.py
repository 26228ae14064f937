"""Fixtures that some tiers need, imported by their `conftest`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clock import NoClockError, ServerClock
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


def server_clock(folder: Path, *, stands: bool) -> ServerClock:
    """Return the clock of servers that are started with its environment. Skips where there is no C compiler."""
    try:
        return ServerClock(folder, stands=stands)
    except NoClockError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def clock(tmp_path: Path) -> ServerClock:
    """A clock that goes on."""
    return server_clock(tmp_path, stands=False)
