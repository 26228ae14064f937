"""Pauses before the next attempt to reach Redis, and the wait for a server that is not ready at the start."""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from workers.protocol.errors import UnreachableError
from workers.protocol.meaning import is_contact_error, is_not_now

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.75


def pause_s(failures: int) -> float:
    """Return the pause in seconds after so many failures in a row. A random part spreads the attempts of workers."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10)) * random.uniform(0.5, 1)


async def once_served(begin: Callable[[], Awaitable[T]], missed: Callable[[BaseException], None]) -> T:
    """Call ``begin`` until the server is ready, and return its result. Each failure is passed to ``missed``.

    Waits while the server reports that it is not ready (`is_not_now`). After its first answer, waits out lost
    connections, too, because the address is right. Raises every other error of ``begin``, for example if there is no
    server at the address, or if it rejects the user.
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
