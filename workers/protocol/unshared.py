"""Connections to Redis that a process which a handler forks does not keep open."""

from typing import Any, TypeVar

from workers.forks import keep_from_children

KindT = TypeVar("KindT", bound=type[Any])


def unshared(kind: KindT) -> KindT:
    """Return a class of asyncio connections of redis-py whose sockets are closed in forked children."""

    async def on_connect_check_health(self: Any, check_health: bool = True) -> None:
        keep_from_children(self._writer.transport)
        await kind.on_connect_check_health(self, check_health)

    return type(kind.__name__, (kind,), {"on_connect_check_health": on_connect_check_health})  # type: ignore[return-value]
