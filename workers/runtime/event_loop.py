"""Creates the event loop, and calls functions in it from threads. redis-py needs asyncio or uvloop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from typing import TypeVar, TypeVarTuple

import anyio

from workers.protocol.errors import ConfigurationError
from workers.protocol.log_fields import fields

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
ArgumentTs = TypeVarTuple("ArgumentTs")


def run_in_loop(function: Callable[[*ArgumentTs], Awaitable[ResultT]], *arguments: *ArgumentTs) -> ResultT:
    """Run ``function`` in a new event loop and return its result. The loop is uvloop's if uvloop is installed."""
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        new_loop = import_module("uvloop").new_event_loop
    logger.debug("event loop chosen: %s", fields(module=new_loop.__module__.partition(".")[0]))
    return anyio.run(function, *arguments, backend_options={"loop_factory": new_loop})


def require_asyncio(what: str) -> asyncio.AbstractEventLoop:
    """Return the event loop. Raises ConfigurationError if it is not asyncio's. The message begins with ``what``.

    Call it in the task that starts the work. From then on anyio knows the event loop in callbacks, too.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            f"{what} needs an asyncio or uvloop event loop, and this is another one. Under trio, use a thread with an "
            'event loop of its own: anyio.from_thread.start_blocking_portal("asyncio").'
        ) from None
    _tell_anyio()
    return loop


def _tell_anyio() -> None:
    """Give sniffio the name of the event loop, because ``asyncio.run`` does not.

    anyio asks sniffio if another library has installed it. In a callback there is no task that would give the answer.
    """
    with suppress(ImportError):
        import_module("sniffio").current_async_library_cvar.set("asyncio")


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call ``function`` in ``loop`` soon, or never if the loop is closed. Works in threads and in signal handlers.

    A signal handler runs between two steps of the loop, and does not wake a loop that sleeps. So the call is always
    scheduled in the way of a thread, and never made at once.
    """

    async def call() -> None:  # in a bare callback, anyio would not know its event loop
        function()

    with suppress(RuntimeError):  # the loop is closed, so its tasks have ended
        loop.call_soon_threadsafe(lambda: loop.create_task(call()))
