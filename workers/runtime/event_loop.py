"""The event loop that we run in: asyncio's or uvloop's, because redis-py has no other; and how threads reach it."""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any, TypeVar, TypeVarTuple, cast

import anyio
from pydantic import Field

from workers.protocol.errors import ConfigurationError

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
ArgumentTs = TypeVarTuple("ArgumentTs")

NewLoop = Callable[[], asyncio.AbstractEventLoop]


class EventLoop(StrEnum):
    """Which event loop a process of ours makes for itself."""

    AUTO = "auto"
    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"


Loop = Annotated[
    EventLoop,
    Field(
        description="Event loop of the process: `auto` (uvloop's where it is installed: `pip install '.[uvloop]'` "
        "in your clone), `asyncio` or `uvloop`. A program that runs by itself brings its own."
    ),
]
"""A setting."""


def run_in(loop: EventLoop, function: Callable[[*ArgumentTs], Awaitable[ResultT]], *arguments: *ArgumentTs) -> ResultT:
    """Run ``function`` in a new event loop and return what it returns.

    Raises ConfigurationError where ``loop`` is one that cannot be had here.
    """
    new_loop = maker_of(loop)
    logger.debug("event loop: %s", new_loop.__module__.partition(".")[0])
    return anyio.run(function, *arguments, backend_options={"loop_factory": new_loop})


def maker_of(loop: EventLoop) -> NewLoop:
    """Return what makes such an event loop. Raises ConfigurationError where it cannot be had here.

    Where nobody has chosen, an interpreter without a lock keeps asyncio's: a module that is not made for that would
    bring the lock back, and plain handlers run in threads.
    """
    if loop is EventLoop.ASYNCIO or (loop is EventLoop.AUTO and not _has_lock()):
        return asyncio.new_event_loop
    try:
        return cast("NewLoop", import_module("uvloop").new_event_loop)
    except ImportError as error:
        if loop is EventLoop.AUTO:
            return asyncio.new_event_loop
        raise ConfigurationError(
            f"loop is 'uvloop', which cannot be imported ({error}): run pip install '.[uvloop]' in your "
            "clone (there is none for Windows), or leave it at 'auto'."
        ) from error


def _has_lock() -> bool:
    is_enabled: Callable[[], Any] | None = getattr(sys, "_is_gil_enabled", None)  # 3.13 and later
    return is_enabled is None or bool(is_enabled())


def require_asyncio(what: str) -> asyncio.AbstractEventLoop:
    """Return the event loop. Raises ConfigurationError where it is not asyncio's; ``what`` begins the sentence.

    Whoever calls is in the task that runs what it starts: from now on anyio knows its event loop in callbacks, too.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            f"{what} runs under asyncio (uvloop, too), as redis-py does, and this event loop is another one. "
            "Under trio, give it a thread with an event loop of its own: "
            'anyio.from_thread.start_blocking_portal("asyncio").'
        ) from None
    _tell_anyio()
    return loop


def _tell_anyio() -> None:
    """Name the event loop where it is looked for. ``asyncio.run`` does not, and in a callback there is no task to tell.

    anyio asks sniffio wherever some other library has brought it along, and then could start no task in a callback.
    """
    with suppress(ImportError):
        import_module("sniffio").current_async_library_cvar.set("asyncio")


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call ``function`` in ``loop``, soon; not at all where it is closed. From anywhere, also from a signal handler.

    Such a handler runs between any two steps of whatever the loop is at, and wakes no loop that sleeps. From inside of
    it that looks like any other call in the loop, so none is made at once.
    """

    async def call() -> None:
        function()

    def begin() -> None:
        loop.create_task(call())  # in a bare callback, anyio would not know its event loop

    with suppress(RuntimeError):  # closed: whatever ran in it has ended
        loop.call_soon_threadsafe(begin)
