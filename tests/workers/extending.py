"""Notes which deliveries the workers of a test have extended."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.workers.scene import KEYS
from workers.protocol.calls.moves import HeartbeatAnswer, HeartbeatEntry, Moves

extending = pytest.mark.usefixtures("hurried")
"""Marks tests whose workers extend ten times in a second."""

_extended: list[str] = []


def note_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a list of the extended entries of this process. It is filled in every thread that extends."""
    _extended.clear()
    run = Moves.extend

    async def noting(self: Moves, client: Any, source: str, items: Iterable[HeartbeatEntry]) -> Any:
        batch = list(items)
        lives = await run(self, client, source, batch)
        _extended.extend(
            item.entry_id.decode() for item, life in zip(batch, lives, strict=True) if life is HeartbeatAnswer.EXTENDED
        )
        return lives

    monkeypatch.setattr(Moves, "extend", noting)


def extensions() -> list[str]:
    """Return the entries that were extended, once for each time."""
    return list(_extended)


def extended(entry_id: str, times: int) -> Callable[[], bool]:
    """Return a condition: the entry was extended so often."""
    return lambda: _extended.count(entry_id) >= times


async def steal(client: Redis, entry_id: str) -> None:
    """Give the delivery to another consumer, as a recovery does that keeps the entry."""
    await client.execute_command("XCLAIM", KEYS.stream, KEYS.group, "thief", 0, entry_id)
