"""Keys and arguments that all scripts take that move jobs (``lua/keys.lua``)."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from redis.asyncio import Redis

from workers.protocol.calls import Journal
from workers.protocol.connection import KeptConnection
from workers.protocol.keys import GroupKeys

Client = Redis | KeptConnection


class Taken(NamedTuple):
    """A delivery that is ours from now on."""

    entry_id: bytes
    flat: list[bytes]
    times: int


@dataclass(frozen=True, slots=True)
class CoreCalls:
    """The keys and the first arguments of one group, as all these scripts take them."""

    keys: GroupKeys
    maxlen: int
    """Of the journal; 0 = write none."""

    @classmethod
    def of(cls, keys: GroupKeys, journal: Journal) -> Self:
        """Return the scripts of a group that write what ``journal`` says."""
        return cls(keys, journal.maxlen if journal.writes else 0)

    def _words(self, *argv: str | bytes | int) -> tuple[str | bytes | int, ...]:
        return self.keys.group, self.maxlen, *argv

    def _names(self, source: str) -> tuple[str, ...]:
        keys = self.keys
        quarantine = keys.quarantine
        return source, keys.stream, keys.retry, keys.dead, keys.agreement, keys.schedule, quarantine, keys.journal
