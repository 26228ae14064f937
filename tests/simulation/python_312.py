"""Has asyncio do as it does from Python 3.12 on, where an earlier one costs a story a third of its time.

Up to 3.11, `asyncio.wait_for` runs what it waits for in a task of its own, and redis-py bounds each send by it; and
whoever asks for the running loop or task asks the operating system for the process ID. The story is the same in all.
"""

import asyncio
import sys
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest import mock

from anyio._backends import _asyncio as anyio_backend

ResultT = TypeVar("ResultT")


@contextmanager
def as_in_312(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Do so while the block runs: ``loop``, and no other one."""
    if sys.version_info >= (3, 12):
        yield
        return
    tasks: Any = asyncio.tasks._current_tasks  # type: ignore[attr-defined]

    def running_loop() -> asyncio.AbstractEventLoop:
        return loop

    def current_task(of: asyncio.AbstractEventLoop | None = None) -> "asyncio.Task[Any] | None":
        task: asyncio.Task[Any] | None = tasks.get(of or loop)
        return task

    with ExitStack() as stack:
        for where, name, instead in (
            (asyncio, "wait_for", _wait_for),
            (asyncio, "get_running_loop", running_loop),
            (asyncio.events, "get_running_loop", running_loop),
            (anyio_backend, "get_running_loop", running_loop),
            (asyncio, "current_task", current_task),
            (asyncio.tasks, "current_task", current_task),
            (anyio_backend, "current_task", current_task),
        ):
            stack.enter_context(mock.patch.object(where, name, instead))
        yield


async def _wait_for(awaitable: Awaitable[ResultT], timeout: float | None) -> ResultT:
    async with asyncio.timeout(timeout):
        return await awaitable
