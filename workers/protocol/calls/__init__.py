"""One typed call for each script, which spells its keys and arguments, and reads its reply.

Each call names the ``.lua`` file in ``workers/protocol/lua/`` that is its contract. All calls raise redis-py's errors.
A refusal is a result. After a lost contact the effect is unknown.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

from redis.asyncio import Redis

from workers.protocol.connection import KeptConnection
from workers.protocol.events import DEFAULT_JOURNAL_MAXLEN
from workers.protocol.keys import GroupKeys

CALL_BYTES = 512 * 1024
"""Payload after which a call puts off the rest of its work, because it may block the server for 5 ms at most."""

Client = Redis | KeptConnection
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


class Journal(NamedTuple):
    """The settings of the journal, as two arguments of scripts in this order."""

    writes: int
    """1 = write lifecycle events there."""
    maxlen: int

    @classmethod
    def at(cls, journals: bool, maxlen: int) -> Self:
        """Return the arguments for these settings."""
        return cls(int(journals), maxlen)


DEFAULT_JOURNAL = Journal.at(True, DEFAULT_JOURNAL_MAXLEN)


class Taken(NamedTuple):
    """A delivery that is ours from now on."""

    entry_id: bytes
    flat: list[bytes]
    times: int


@dataclass(frozen=True, slots=True)
class CoreCalls:
    """The keys and first arguments that all scripts of a group take that move jobs (``lua/keys.lua``)."""

    keys: GroupKeys
    maxlen: int
    """Of the journal; 0 = write none."""

    @classmethod
    def of(cls, keys: GroupKeys, journal: Journal, **more: Any) -> Self:
        """Return the scripts of a group that write what ``journal`` says."""
        return cls(keys, journal.maxlen if journal.writes else 0, **more)

    def _words(self, *argv: str | bytes | int) -> tuple[str | bytes | int, ...]:
        return self.keys.group, self.maxlen, *argv

    def _names(self, source: str) -> tuple[str, ...]:
        keys = self.keys
        quarantine = keys.quarantine
        return source, keys.stream, keys.retry, keys.dead, keys.agreement, keys.schedule, quarantine, keys.journal
