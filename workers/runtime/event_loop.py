"""The event loop that we run in: asyncio's, because redis-py has no other; and how other threads reach it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

from workers.protocol.errors import ConfigurationError


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
    """Call ``function`` in ``loop``: at once where we are in it, else soon, and not at all where it is closed."""
    try:
        is_ours = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_ours = False  # another thread, without a loop
    if is_ours:
        function()
        return

    async def call() -> None:
        function()

    def begin() -> None:
        loop.create_task(call())  # in a bare callback from a thread, anyio would not know its event loop

    with suppress(RuntimeError):  # closed: whatever ran in it has ended
        loop.call_soon_threadsafe(begin)
