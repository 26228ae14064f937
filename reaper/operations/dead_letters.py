"""Reads, selects and deletes dead letters (`reaper.operations.ready_again` makes their jobs ready again).

A dead letter is an entry of an ordinary stream. It has the job's own fields byte for byte, and then the fields of its
end (``docs/protocol.md``).
"""

import base64
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from redis.asyncio import Redis

from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import (
    DEAD_PREFIX,
    FIELD_CONSUMERS,
    RESERVED_PREFIX,
    Pairs,
    entry_ms,
    is_entry_id,
    pair_up,
    read_metadata,
    text,
    whole_number,
)
from workers.runtime.clock import server_ms

PAGE = 100
"""Dead letters read at a time."""
DELETE_BATCH = 500


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. Other programs can write to the stream, so any field may be invalid. Times are server ms."""

    id: str
    job: str
    group: str
    """As ``stream/group``."""
    entry: str
    """ID of the entry that was given up."""
    reason: str
    error: str
    deliveries: int
    generation: int
    consumers: tuple[str, ...]
    first_ms: int
    last_ms: int
    """Time of the last delivery."""
    at_ms: int
    fields: Pairs
    """The job's own fields, byte for byte, duplicates and order kept."""

    def as_json(self) -> dict[str, Any]:
        """Return the document of ``-o json``. A value that is no UTF-8 is written as ``{"base64": …}``."""
        fields = [[json_value(name), json_value(value)] for name, value in self.fields]
        return asdict(replace(self, fields=[])) | {"fields": fields}


def json_value(value: bytes) -> str | dict[str, str]:
    """Return a name or value of a field as JSON has it."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def read_dead_letter(entry_id: bytes, flat: Sequence[bytes]) -> DeadLetter:
    """Read one entry of a dead-letter stream. Missing and invalid fields read as empty or 0."""
    pairs = pair_up(flat)
    found = dict(pairs)  # the last one of a name counts
    metadata = read_metadata(entry_id, pairs)

    def end(name: bytes) -> str:
        return text(found.get(DEAD_PREFIX + name, b""))

    return DeadLetter(
        id=text(entry_id),
        job=text(metadata.job_id),
        group=f"{end(b'stream')}/{end(b'group')}",
        entry=end(b"entry"),
        reason=end(b"reason"),
        error=end(b"error"),
        deliveries=metadata.deliveries,
        generation=metadata.generation,
        consumers=tuple(name for name in text(found.get(FIELD_CONSUMERS, b"")).split(",") if name),
        first_ms=metadata.first_ms,
        last_ms=whole_number(found.get(DEAD_PREFIX + b"last_ms"), 0),
        at_ms=whole_number(found.get(DEAD_PREFIX + b"at_ms"), entry_ms(entry_id)),
        fields=[pair for pair in pairs if not pair[0].startswith(RESERVED_PREFIX)],
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected dead letters, by ID, or all that have ``reason`` and are old enough."""

    ids: tuple[str, ...] = ()
    reason: str | None = None
    older_than_s: float | None = None
    """How long ago the job was dead-lettered at least."""

    def matches(self, letter: DeadLetter, now_ms: int) -> bool:
        """Tell whether a letter that was read belongs to the selection."""
        is_old_enough = self.older_than_s is None or letter.at_ms < now_ms - self.older_than_s * 1000
        return is_old_enough and (self.reason is None or letter.reason == self.reason)


def check_ids(ids: Sequence[str]) -> tuple[str, ...]:
    """Return ``ids`` without repetitions. Raises ConfigurationError for one that is no entry ID."""
    for entry_id in ids:
        if not is_entry_id(entry_id):
            raise ConfigurationError(f"{entry_id!r} is not an entry ID. Write it as it is listed: 1766000000000-0.")
    return tuple(dict.fromkeys(ids))


def choose(ids: Sequence[str], *, reason: str | None, everything: bool, older_than_s: float | None = None) -> Selection:
    """Return the selection by IDs and filters.

    Raises ConfigurationError if they select no letter, or contradict each other.
    """
    ways = [bool(ids), reason is not None or older_than_s is not None, everything]
    if sum(ways) != 1:
        given = "IDs, filters and --all exclude each other" if any(ways) else "no dead letter is selected"
        raise ConfigurationError(f"{given}. Give IDs, or a filter such as --reason max_deliveries, or --all.")
    return Selection(check_ids(ids), reason, older_than_s)


async def find(client: Redis, keys: GroupKeys, entry_id: str) -> DeadLetter | None:
    """Return one dead letter, or None if it does not exist."""
    rows: Any = await client.xrange(keys.dead, entry_id, entry_id)
    return read_dead_letter(*rows[0]) if rows else None


async def select(client: Redis, keys: GroupKeys, selection: Selection) -> AsyncIterator[DeadLetter]:
    """Read the selected dead letters that exist now, oldest first.

    Later ones are left out, because a job that dies again would be redriven for ever.
    """
    for entry_id in selection.ids:
        if letter := await find(client, keys, entry_id):
            yield letter
    newest: Any = () if selection.ids else await client.xrevrange(keys.dead, "+", "-", 1)
    start, now_ms = "-", await server_ms(client)
    while newest:
        rows: Any = await client.xrange(keys.dead, start, newest[0][0], PAGE)
        for row in rows:
            letter = read_dead_letter(*row)
            if selection.matches(letter, now_ms):
                yield letter
        if len(rows) < PAGE:
            return
        start = f"({text(rows[-1][0])}"


async def delete(client: Redis, keys: GroupKeys, ids: Sequence[str]) -> int:
    """Delete dead letters for good. Return how many existed. Raises redis-py's errors."""
    deleted = 0
    for start in range(0, len(ids), DELETE_BATCH):
        deleted += int(await client.xdel(keys.dead, *ids[start : start + DELETE_BATCH]))
    return deleted
