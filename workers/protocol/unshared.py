"""Connections to Redis that a process which a handler forks does not keep open."""

import os
import socket
from contextlib import suppress
from typing import Any, TypeVar

from workers.forks import forks_made, keep_from_children

KindT = TypeVar("KindT", bound=type[Any])

MOST_ANEW = 3
"""So often a connection is made anew because of a fork. A program that forks all the time has to get one, too."""


def unshared(kind: KindT) -> KindT:
    """Return a class of asyncio connections of redis-py whose sockets are closed in forked children.

    The event loop makes the socket and hands it out when it is connected. A child that was forked meanwhile has it,
    too, so the connection is ended in all processes and made anew.
    """

    async def connect(self: Any) -> None:
        for anew in range(MOST_ANEW + 1):
            before = forks_made()
            await kind._connect(self)  # noqa: SLF001 - redis-py has no other place between connecting and greeting
            transport = self._writer.transport
            keep_from_children(transport)
            if forks_made() == before or anew == MOST_ANEW:
                return
            _end(transport)

    return type(kind.__name__, (kind,), {"_connect": connect})  # type: ignore[return-value]


def _end(transport: Any) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as shared:
        shared.shutdown(socket.SHUT_RDWR)
    transport.abort()
