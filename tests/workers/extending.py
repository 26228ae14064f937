"""Notes which deliveries the workers of a test have extended."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from workers.protocol.calls.moves import HeartbeatAnswer, HeartbeatEntry, Moves

_extended: list[str] = []


def note_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a list of the extended entries of this process. It is filled in every thread that extends."""
    _extended.clear()
    run, run_blocking = Moves.extend, Moves.extend_blocking

    def note(items: Sequence[HeartbeatEntry], lives: Sequence[HeartbeatAnswer]) -> None:
        for item, life in zip(items, lives, strict=True):
            if life is HeartbeatAnswer.EXTENDED:
                _extended.append(item.entry_id.decode())

    async def noting(self: Moves, client: Any, source: str, items: Iterable[HeartbeatEntry]) -> Any:
        batch = list(items)
        lives = await run(self, client, source, batch)
        note(batch, lives)
        return lives

    def noting_blocking(self: Moves, client: Any, source: str, items: Iterable[HeartbeatEntry]) -> Any:
        batch = list(items)
        lives = run_blocking(self, client, source, batch)
        note(batch, lives)
        return lives

    monkeypatch.setattr(Moves, "extend", noting)
    monkeypatch.setattr(Moves, "extend_blocking", noting_blocking)


def extensions() -> list[str]:
    """Return the entries that were extended, once for each time."""
    return list(_extended)


def extended(entry_id: str, times: int) -> Callable[[], bool]:
    """Return a condition: the entry was extended so often."""
    return lambda: _extended.count(entry_id) >= times
