"""The start of a process that finds a server which is there and does not serve now."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from workers.protocol.errors import UnreachableError
from workers.protocol.meaning import is_contact_error, is_not_now
from workers.runtime.pauses import pause_s

T = TypeVar("T")


async def once_served(begin: Callable[[], Awaitable[T]], missed: Callable[[BaseException], None]) -> T:
    """Return what ``begin`` returns, which is tried until the server serves us.

    Waited for is what the server says of itself (`is_not_now`), and from then on any lost contact, since the address
    has led to it. ``missed`` is told of each failure. Raises what ``begin`` raises where waiting mends nothing, or
    nobody can tell: nobody answers there, or another server; it does not let us in, or misses what we need.
    """
    failures = 0
    while True:
        try:
            return await begin()
        except UnreachableError as error:
            why = error.__cause__
            if why is None or not (is_not_now(why) or (failures and is_contact_error(why))):
                raise
        failures += 1
        missed(why)
        await anyio.sleep(pause_s(failures))
