"""Waits for a condition; nothing in the tests waits for time to pass."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

import anyio

ResultT = TypeVar("ResultT")

_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.05


@overload
async def wait_until(
    predicate: Callable[[], Awaitable[ResultT]], description: str, timeout: float = ...
) -> ResultT: ...
@overload
async def wait_until(predicate: Callable[[], ResultT], description: str, timeout: float = ...) -> ResultT: ...
async def wait_until(predicate: Callable[[], Any], description: str, timeout: float = 10.0) -> Any:
    """Return the first true value of ``predicate``, sync or async, asked again and again.

    ``timeout`` is in seconds. Raises AssertionError with ``description`` and the last value once it is over.
    """
    deadline = anyio.current_time() + timeout
    pause = _FIRST_PAUSE_S
    while True:
        answer = predicate()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if anyio.current_time() >= deadline:
            raise AssertionError(f"waited {timeout:g} s in vain until {description} (last value: {value!r})")
        await anyio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
