"""Gives lost deliveries back: copies of their entries become ready (``requeue.lua``).

Redis loses the deliveries of a consumer or a group that a third party deletes. The reaper reports them with
`lost_delivery` events in the journal. The entries are still in the stream, but no consumer receives them.
"""

from collections.abc import AsyncIterator, Container, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from redis.asyncio import Redis

from workers.protocol.calls import CALL_BYTES, GroupCalls
from workers.protocol.errors import ConfigurationError, NotPossibleError
from workers.protocol.events import ENDS, EventName, LifecycleEvent, events_of
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import Redelivery, is_entry_id, text, told
from workers.protocol.scripts import load_script

BATCH = 100
PAGE = 1_000
"""Journal entries that are read in one call."""
_OF_INTEREST = ENDS | {EventName.LOST_DELIVERY}


class RequeueOutcome(IntEnum):
    """Outcome for one entry. Numbers as in ``requeue.lua``."""

    GONE = 0
    """The entry is not there: it was deleted, or requeued before."""
    REQUEUED = 1
    PENDING = 2
    """A worker has it, or recovery will make it ready."""
    READY = 3
    """The group has not delivered it yet."""
    HELD = 4
    """It cannot be copied."""
    PUT_OFF = 5
    SETTLED = 6
    """The journal says that it was settled or requeued. Not of the script."""


class Entry(NamedTuple):
    """One entry of the stream, or of the group's retry stream; `is_retry` is None if it may be in either."""

    entry_id: str
    is_retry: bool | None = None


@dataclass(slots=True)
class JournalFindings:
    """The group's entries in the journal."""

    lost: dict[Entry, None] = field(default_factory=dict)
    """Reported as lost, and not as settled or requeued later; oldest first."""
    ended: set[str] = field(default_factory=set)
    """IDs of the entries that were settled or requeued, and not reported as lost later."""

    def take(self, event: LifecycleEvent) -> None:
        """Note an event; in the order of the journal."""
        entry_id = str(event.data.get("entry"))
        if event.event == EventName.LOST_DELIVERY:
            if is_entry_id(entry_id):  # the journal is open to others
                self.lost[Entry(entry_id, event.data.get("source") == "retry")] = None
                self.ended.discard(entry_id)
        elif event.data.get("new_entry") != entry_id:  # else it became ready where it is, and may be lost again
            self.ended.add(entry_id)
            for is_retry in (False, True):
                self.lost.pop(Entry(entry_id, is_retry), None)


@dataclass(frozen=True, slots=True)
class Requeued:
    """Result for one entry. ``detail``: its new entry ID, or why it cannot be copied."""

    entry_id: str
    outcome: RequeueOutcome
    detail: str
    job_id: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """How entries are requeued. ``policy`` counts if the group has agreed on none."""

    policy: Redelivery
    journal_limit: int
    """Length of the journal; 0 = none is written."""
    dry_run: bool = False


def entries_of(ids: Sequence[str]) -> list[Entry]:
    """Return the entries that IDs name. Raises ConfigurationError for one that is no entry ID."""
    for entry_id in ids:
        if not is_entry_id(entry_id):
            raise ConfigurationError(
                f"{entry_id!r} is not an entry ID. Write it as in the `lost_delivery` event, for example "
                "1766000000000-0."
            )
    return [Entry(entry_id) for entry_id in dict.fromkeys(ids)]


async def read_journal(client: Redis, keys: GroupKeys, since_ms: int) -> JournalFindings:
    """Read the journal since ``since_ms`` for the group's entries. Raises errors of redis-py."""
    found, start = JournalFindings(), f"{max(0, since_ms)}"
    while True:
        rows: Any = await client.execute_command("XRANGE", keys.journal, start, "+", "COUNT", PAGE)
        for entry_id, flat in rows:
            for event in events_of(entry_id, flat or (), _OF_INTEREST):
                if event.data.get("group") == keys.group:
                    found.take(event)
        if len(rows) < PAGE:
            return found
        start = f"({text(rows[-1][0])}"


async def requeue(
    client: Redis, keys: GroupKeys, entries: Sequence[Entry], ended: Container[str], how: Requeue
) -> AsyncIterator[Requeued]:
    """Make entries ready again, but for those that have ``ended``. Yield one result each, as they are done.

    Raises NotPossibleError if the group does not exist, and errors of redis-py.
    """
    for entry in entries:
        if entry.entry_id in ended:
            yield Requeued(entry.entry_id, RequeueOutcome.SETTLED, "", "")
    wanted = [entry for entry in entries if entry.entry_id not in ended]
    in_either = {entry.entry_id for entry in wanted if entry.is_retry is None}
    retry = [entry.entry_id for entry in wanted if entry.is_retry]
    async for result in _in_batches(client, keys, [one.entry_id for one in wanted if not one.is_retry], how):
        if result.outcome is RequeueOutcome.GONE and result.entry_id in in_either:
            retry.append(result.entry_id)
        else:
            yield result
    async for result in _in_batches(client, keys, retry, how, is_retry=True):
        yield result


async def _in_batches(
    client: Redis, keys: GroupKeys, ids: Sequence[str], how: Requeue, *, is_retry: bool = False
) -> AsyncIterator[Requeued]:
    while ids:
        results = await _requeue_batch(client, keys, ids[:BATCH], how, is_retry=is_retry)
        for result in results:
            if result.outcome is not RequeueOutcome.PUT_OFF:
                yield result
        ids = [*(one.entry_id for one in results if one.outcome is RequeueOutcome.PUT_OFF), *ids[BATCH:]]


async def forget_count(client: Redis, keys: GroupKeys) -> None:
    """Set the number of lost deliveries, which makes the service degraded, to 0. Raises errors of redis-py."""
    await client.hdel(keys.agreement, "lost_delivery", "lost_delivery_ms")


async def _requeue_batch(
    client: Redis, keys: GroupKeys, ids: Sequence[str], how: Requeue, *, is_retry: bool
) -> list[Requeued]:
    source = keys.retry if is_retry else keys.stream
    words = GroupCalls(keys, how.journal_limit).spell(source, how.policy, int(how.dry_run), CALL_BYTES, *ids)
    reply = await load_script("reaper", "requeue").run(client, *words)
    if reply[0] != b"ok":
        raise NotPossibleError(
            f"cannot requeue: group {keys.pair!r} does not exist, so no worker would read the copies. "
            "Create the group, or start its workers."
        )
    return [
        Requeued(entry_id, RequeueOutcome(code), told(detail), text(job_id))
        for entry_id, (code, detail, job_id) in zip(ids, reply[1:], strict=True)
    ]
