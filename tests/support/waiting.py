"""Waits for events. No test waits for time to pass. Limits are those of `tests.support.patience`."""

import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar, overload

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.support.patience import PATIENCE_S, Patience, beat

ResultT = TypeVar("ResultT")
Progress = Callable[[], object]
"""Returns something that is different when there was progress."""

_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.05
_SHORT_PAUSE_S = 0.005
_LOOK_EVERY_S = 0.25


@overload
async def wait_until(
    predicate: Callable[[], Awaitable[ResultT]],
    description: str,
    patience: float = ...,
    *,
    progress: Progress | None = ...,
) -> ResultT: ...
@overload
async def wait_until(
    predicate: Callable[[], ResultT], description: str, patience: float = ..., *, progress: Progress | None = ...
) -> ResultT: ...
async def wait_until(
    predicate: Callable[[], Any],
    description: str,
    patience: float = PATIENCE_S,
    *,
    progress: Progress | None = None,
) -> Any:
    """Return the first true value of ``predicate``, sync or async, asked again and again.

    Raises AssertionError with ``description`` and the last value once nothing has happened for ``patience`` seconds:
    neither has the value changed, nor what ``progress`` returns, nor was any process of the test busy.
    """
    began = anyio.current_time()
    left = Patience(began, patience)
    pause = _FIRST_PAUSE_S
    while True:
        answer = predicate()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            beat()
            return value
        if left.is_new(anyio.current_time(), (value, progress() if progress else None)):
            beat()
        if left.is_over(anyio.current_time()):
            raise AssertionError(_in_vain(description, left, anyio.current_time() - began, value))
        await anyio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)


def wait_until_here(predicate: Callable[[], ResultT], description: str, patience: float = PATIENCE_S) -> ResultT:
    """Do as `wait_until` does, in code without an event loop."""
    began = time.monotonic()
    left = Patience(began, patience)
    while True:
        value = predicate()
        if value:
            beat()
            return value
        if left.is_new(time.monotonic(), value):
            beat()
        if left.is_over(time.monotonic()):
            raise AssertionError(_in_vain(description, left, time.monotonic() - began, value))
        time.sleep(_SHORT_PAUSE_S)


async def happens(
    event: Callable[[], Awaitable[object]],
    description: str,
    patience: float = PATIENCE_S,
    *,
    progress: Progress | None = None,
) -> None:
    """Wait for an event without asking again and again: ``event`` waits for it, and may be cancelled and called anew.

    Raises AssertionError with ``description`` as `wait_until` does.
    """
    began = anyio.current_time()
    left = Patience(began, patience)
    while True:
        with anyio.move_on_after(min(_LOOK_EVERY_S, left.limit_s)):
            await event()
            beat()
            return
        if progress and left.is_new(anyio.current_time(), progress()):
            beat()
        if left.is_over(anyio.current_time()):
            raise AssertionError(_in_vain(description, left, anyio.current_time() - began))


async def answers(client: Redis) -> bool:
    """Tell whether the server of ``client`` answers: one with little patience asks again on a busy machine."""
    with suppress(RedisError):
        return bool(await client.ping())
    return False


def _in_vain(description: str, left: Patience, waited_s: float, *last: object) -> str:
    value = f" (last value: {last[0]!r})" if last else ""
    return f"waited in vain until {description}{value}: for {waited_s:.3g} s, {left.idle_s:.3g} s of them in a row idle"
