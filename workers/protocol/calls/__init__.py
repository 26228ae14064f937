"""One typed call for each script, which spells its keys and arguments, and reads its reply.

Each call names the ``.lua`` file in ``workers/protocol/lua/`` that is its contract. All calls raise redis-py's errors.
A declined call is a result. After a lost contact the effect is unknown.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from redis.asyncio import Redis

from workers.protocol.connection import KeptConnection
from workers.protocol.keys import GroupKeys
from workers.protocol.scripts import Keys, Words

CALL_BYTES = 512 * 1024
"""Payload after which a call puts off the rest of its work, so that it does not block the server for long."""

Client = Redis | KeptConnection
CountedEntry = tuple[bytes, Sequence[bytes], int]
"""ID and flat fields of an entry, and the number of its deliveries."""
ItemT = TypeVar("ItemT")


def in_calls(
    items: Iterable[ItemT], bytes_of: Callable[[ItemT], int], *, most: int, most_bytes: int
) -> Iterator[list[ItemT]]:
    """Split items into calls, by number and by bytes. The last item of a call may exceed the bytes."""
    call: list[ItemT] = []
    size = 0
    for item in items:
        call.append(item)
        size += bytes_of(item)
        if len(call) == most or size >= most_bytes:
            yield call
            call, size = [], 0
    if call:
        yield call


@dataclass(frozen=True, slots=True)
class GroupCalls:
    """Spells the keys and first arguments that most scripts of a group take (``lua/keys.lua``)."""

    keys: GroupKeys
    journal_limit: int
    """Length of the journal. 0 = no journal."""

    def spell(self, source: str, *argv: str | bytes | float, more_keys: Sequence[str] = ()) -> tuple[Keys, Words]:
        """Return the keys and arguments of a call. ``source`` is the stream that it is about."""
        keys = self.keys
        names = (
            source, keys.stream, keys.retry, keys.dead, keys.settings, keys.schedule, keys.quarantine, keys.journal,
            *more_keys,
        )  # fmt: skip
        return names, (keys.group, self.journal_limit, *argv)
