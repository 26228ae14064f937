"""Notes which deliveries the workers of a test have extended."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from workers.protocol.calls.settlement import Extend, Extension

_extended: list[str] = []


def note_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a list of the extended jobs of this process. It is filled in every thread that extends."""
    _extended.clear()
    run, run_blocking = Extend.run, Extend.run_blocking

    def note(deliveries: Sequence[Any], results: Sequence[Extension]) -> None:
        for delivery, result in zip(deliveries, results, strict=True):
            if result is Extension.EXTENDED:
                _extended.append(delivery.id)

    async def noting(self: Any, client: Any, source: str, deliveries: Any, *words: Any, **more: Any) -> Any:
        reply = await run(self, client, source, deliveries, *words, **more)
        note(deliveries, reply.results)
        return reply

    def noting_blocking(self: Any, client: Any, source: str, deliveries: Any, *words: Any) -> Any:
        reply = run_blocking(self, client, source, deliveries, *words)
        note(deliveries, reply.results)
        return reply

    monkeypatch.setattr(Extend, "run", noting)
    monkeypatch.setattr(Extend, "run_blocking", noting_blocking)


def extensions() -> list[str]:
    """Return the jobs that were extended, once for each time."""
    return list(_extended)


def extended(job_id: str, times: int) -> Callable[[], bool]:
    """Return a condition: the job was extended so often."""
    return lambda: _extended.count(job_id) >= times
