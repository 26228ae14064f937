"""Repeats actions for a group until they succeed, or for as long as the term lasts. Errors of Redis end nothing."""

from collections.abc import Awaitable, Callable

import anyio
from redis.exceptions import RedisError

from reaper.recovery.notes import GroupNotes
from workers.protocol.calls.refusals import Refusal

INSIST_S = (0.1, 1.0)
"""Pause between attempts to take a group over: the first, and the longest."""


async def insist(notes: GroupNotes, what: str, action: Callable[[], Awaitable[bool]]) -> None:
    """Repeat ``action`` until it says True."""
    pause, longest = INSIST_S
    while True:
        try:
            if await action():
                notes.worked(what)
                return
            pause = longest
        except (RedisError, OSError) as error:
            notes.failed(what, error)
            pause = min(pause * 2, longest)
        await anyio.sleep(pause)


async def repeat(
    notes: GroupNotes,
    what: str,
    step: Callable[[], Awaitable[Refusal | None]],
    refused: Callable[[Refusal], None],
    retry_s: float,
) -> None:
    """Repeat ``step``, which also waits until it is time again; what it could not do it does after a pause."""
    while True:
        try:
            refusal = await step()
        except (RedisError, OSError) as error:
            notes.failed(what, error)
        else:
            if refusal is None:
                continue
            refused(refusal)
        await anyio.sleep(retry_s)
