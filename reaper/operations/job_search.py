"""Finds a job by its ID: in the streams, the pending entries lists, the schedules, the dead letters and the journal.

Redis keeps no index of job IDs, so the search reads pages, newest first, down to a given depth. It does not
write.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from redis.asyncio import Redis

from reaper.operations.dead_letters import read_dead_letter, read_names
from reaper.operations.fate import Delivery
from reaper.operations.streams import PAGE, events_in, newest_first
from workers.protocol.calls.group_moves import QUARANTINE_SCORE
from workers.protocol.events import EventName, LifecycleEvent
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import (
    FIELD_QUARANTINED,
    Metadata,
    Pending,
    Redelivery,
    entry_order,
    is_entry_id,
    on_one_line,
    pair_up,
    read_metadata,
    text,
    whole_number,
)
from workers.protocol.scripts import load_script

DEFAULT_DEPTH = 20_000
"""Entries of each stream and journal that are looked at."""
MOST_EVENTS = 100
_ENDS = frozenset({EventName.ACKED, EventName.LOST_PAYLOAD})


class _Entry(NamedTuple):
    """An entry of the job."""

    source: str
    entry_id: str
    metadata: Metadata
    is_quarantined: bool

    @classmethod
    def of(cls, source: str, row: Any) -> "_Entry":
        """Read a row of XRANGE."""
        pairs = list(pair_up(row[1]))
        is_quarantined = any(name == FIELD_QUARANTINED for name, _ in pairs)
        return cls(source, text(row[0]), read_metadata(row[0], pairs), is_quarantined)


class Place(StrEnum):
    """The place of a job."""

    READY = "ready"
    PENDING = "pending"
    SCHEDULED = "scheduled"
    QUARANTINED = "quarantined"
    """In the schedule of the group, with one delivery left."""
    DEAD = "dead"
    SETTLED = "settled"
    UNKNOWN = "unknown"
    """Neither in Redis nor in the part of the journal that was looked at."""


@dataclass(slots=True, kw_only=True)
class FoundJob:
    """The facts that Redis has of one job in one group. Instants are in ms of the server's clock."""

    keys: GroupKeys
    wanted: str
    """What was asked for: a job ID or an entry ID."""
    job_id: str = ""
    place: Place = Place.UNKNOWN
    source: str = ""
    """Key that holds the entry or the packed job."""
    entry_id: str = ""
    owner: str = ""
    idle_ms: int = 0
    times_delivered: int = 0
    """By this entry."""
    deliveries_before: int = 0
    """Counted deliveries before this entry."""
    generation: int = 0
    first_ms: int = 0
    own_visibility_ms: int = 0
    """What the job asks for by itself."""
    is_quarantined: bool = False
    """Its entry says that it has been quarantined."""
    released: str | None = None
    """What is known of it since its release, as in the hash of released jobs; None: it is not released."""
    due_ms: int = 0
    """When a scheduled job becomes ready."""
    quarantined_before: int = 0
    """Quarantined jobs in front of it."""
    reason: str = ""
    """Why it is dead."""
    error: str = ""
    consumers: tuple[str, ...] = ()
    events: list[LifecycleEvent] = field(default_factory=list)
    """Its lifecycle events, oldest first."""
    complete: bool = True
    """Everything was looked at."""

    @property
    def is_known(self) -> bool:
        """Tell whether anything is known of it."""
        return self.place is not Place.UNKNOWN or bool(self.events)

    @property
    def delivery(self) -> Delivery:
        """Its delivery, as recovery sees it."""
        return Delivery(
            self.owner, self.idle_ms, self.times_delivered, self.deliveries_before, self.is_quarantined, self.released
        )

    def take_entry(self, entry: _Entry, place: Place) -> None:
        """Note an entry of the job, and its reserved fields."""
        metadata = entry.metadata
        self.place, self.source, self.entry_id = place, entry.source, entry.entry_id
        self.is_quarantined = entry.is_quarantined
        self.job_id, self.generation, self.first_ms = text(metadata.job_id), metadata.generation, metadata.first_ms
        self.deliveries_before, self.own_visibility_ms = metadata.deliveries, metadata.visibility_ms


async def find_job(client: Redis, keys: GroupKeys, wanted: str, *, depth: int = DEFAULT_DEPTH) -> FoundJob:
    """Look for a job in one group. Raises what redis-py raises."""
    return (await find_jobs(client, keys, [wanted], depth=depth))[wanted]


async def find_jobs(
    client: Redis, keys: GroupKeys, wanted: Iterable[str], *, depth: int = DEFAULT_DEPTH
) -> dict[str, FoundJob]:
    """Look for jobs in one group, and read its journal once for all of them. Raises what redis-py raises."""
    jobs = {one: FoundJob(keys=keys, wanted=one) for one in wanted}
    await _read_events(client, keys, jobs, depth)
    for found in jobs.values():
        await _find_place(client, found, depth)
    return jobs


async def _find_place(client: Redis, found: FoundJob, depth: int) -> None:
    """Find the job in its entries. An acknowledged job may go on: scheduled, quarantined or dead-lettered."""
    settled = await _in_entries(client, found, depth)
    if found.place is not Place.UNKNOWN:
        return
    if await _in_schedules(client, found) or await _in_dead_letters(client, found, depth):
        return
    if settled:
        found.take_entry(settled, Place.SETTLED)
    elif any(event.event in _ENDS for event in found.events):  # and Redis has no entry of it any more
        found.place = Place.SETTLED


# --- journal ------------------------------------------------------------------------------------------------


async def _read_events(client: Redis, keys: GroupKeys, jobs: Mapping[str, FoundJob], depth: int) -> None:
    """Collect the events of each job, newest first, then turn them round. An entry ID leads to the job that had it."""
    asked_by = {wanted: {wanted} for wanted in jobs}
    """By job ID: who is asked for by it, or by an entry that it had."""
    async for event in events_in(_newest_first(client, keys.journal, depth, jobs.values())):
        if event.data.get("group", keys.group) != keys.group:
            continue
        for entry in (event.data.get("entry"), event.data.get("new_entry")):
            if isinstance(entry, str) and entry in jobs:
                asked_by.setdefault(event.job, set()).add(entry)
        for wanted in asked_by.get(event.job, ()):
            if len(jobs[wanted].events) < MOST_EVENTS:
                jobs[wanted].events.append(event)
    for found in jobs.values():
        if found.events:
            found.job_id = found.events[0].job
            found.generation = found.events[0].number("generation") or 0
        found.events.reverse()


async def _newest_first(client: Redis, key: str, depth: int, jobs: Iterable[FoundJob]) -> AsyncIterator[Sequence[Any]]:
    """Read a stream backwards, page by page; notes in each of ``jobs`` where ``depth`` cut it short."""
    seen = 0
    async for row in newest_first(client, key, depth):
        seen += 1
        yield row
    for found in jobs:
        found.complete = found.complete and seen < depth


# --- streams ------------------------------------------------------------------------------------------------


async def _in_entries(client: Redis, found: FoundJob, depth: int) -> _Entry | None:
    """Find an entry that is pending or ready. If there is none, return one that is settled."""
    settled: _Entry | None = None
    positions: dict[str, bytes] = {}
    for source in (found.keys.retry, found.keys.stream):
        last_delivered = await _last_delivered(client, source, found.keys.group)
        if last_delivered is not None:
            positions[source] = last_delivered
    async for entry in _entries_of(client, positions, found, depth):
        rows: Any = await client.execute_command(
            "XPENDING", entry.source, found.keys.group, entry.entry_id, entry.entry_id, 1
        )
        if rows or entry_order(entry.entry_id) > entry_order(positions[entry.source]):
            found.take_entry(entry, Place.READY)
            if rows:
                await _take_delivery(client, found, Pending(*rows[0]))
            return None
        settled = settled or entry
    return settled


async def _entries_of(client: Redis, sources: Collection[str], found: FoundJob, depth: int) -> AsyncIterator[_Entry]:
    """Yield the job's entries: those that are named first, then by walking the streams."""
    named = dict.fromkeys(_named_entries(found))
    for source in sources:
        for entry_id in named:
            rows: Any = await client.xrange(source, entry_id, entry_id)
            for row in rows:
                yield _Entry.of(source, row)
    ids = {found.wanted, found.job_id} - {""}
    for source in sources:
        async for row in _newest_first(client, source, depth, [found]):
            entry = _Entry.of(source, row)
            job_id = entry.metadata.job_id
            if {text(job_id), on_one_line(job_id)} & ids and entry.entry_id not in named:
                yield entry


def _named_entries(found: FoundJob) -> list[str]:
    """Return entry IDs that may be the job's present one, likeliest first."""
    names = [str(event.data.get("new_entry") or "") for event in reversed(found.events)]
    names += [str(event.data.get("entry") or "") for event in reversed(found.events)]
    names += [found.wanted, found.job_id]
    return [name for name in names if is_entry_id(name)]


async def _last_delivered(client: Redis, source: str, group: str) -> bytes | None:
    if await client.type(source) != b"stream":
        return None
    groups: Any = await client.xinfo_groups(source)
    return next((one["last-delivered-id"] for one in groups if text(one["name"]) == group), None)


async def _take_delivery(client: Redis, found: FoundJob, pending: Pending) -> None:
    """Note a delivery. One that was given back is ready where it is if workers read it there."""
    found.place, found.owner = Place.PENDING, text(pending.consumer)
    found.idle_ms, found.times_delivered = int(pending.idle_ms), int(pending.delivery_count)
    pipe = client.pipeline(transaction=False)
    pipe.hget(found.keys.agreement, "policy")
    pipe.hget(found.keys.quarantine, found.entry_id)
    policy, released = await pipe.execute()
    found.released = None if released is None else text(released)
    if found.delivery.is_given_back and text(policy or b"") == Redelivery.IN_PLACE:
        found.place = Place.READY
        found.deliveries_before += found.times_delivered
        found.owner, found.idle_ms = "", 0


# --- schedules and dead letters -----------------------------------------------------------------------------


async def _in_schedules(client: Redis, found: FoundJob) -> bool:
    names = dict.fromkeys(name for name in (found.job_id, found.wanted) if name)
    for schedule in (found.keys.schedule, found.keys.stream_schedule):
        if await client.type(schedule) == b"zset":
            for wanted in names:
                if await _in_schedule(client, found, schedule, wanted):
                    return True
    return False


async def _in_schedule(client: Redis, found: FoundJob, schedule: str, wanted: str) -> bool:
    """Look through a schedule, page by page, for a job ID or the ID of the entry the job had."""
    script, next_rank = load_script("reaper", "find_scheduled"), 0
    while next_rank >= 0:
        next_rank, *row = await script.run(client, [schedule], [wanted, next_rank, PAGE])
        if row:
            rank, score, _, job_id, deliveries, generation, first_ms, consumers, entry_id = row
            found.source, found.entry_id, found.job_id = schedule, text(entry_id), text(job_id)
            found.deliveries_before, found.generation = whole_number(deliveries, 0), whole_number(generation, 0)
            found.first_ms, found.consumers = whole_number(first_ms, 0), read_names(consumers)
            if float(score) >= QUARANTINE_SCORE:
                found.place = Place.QUARANTINED
                found.quarantined_before = rank - int(await client.zcount(schedule, "-inf", f"({QUARANTINE_SCORE}"))
            else:
                found.place, found.due_ms = Place.SCHEDULED, int(float(score))
            return True
    return False


async def _in_dead_letters(client: Redis, found: FoundJob, depth: int) -> bool:
    ids = {found.wanted, found.job_id} - {""}
    async for row in _newest_first(client, found.keys.dead, depth, [found]):
        letter = read_dead_letter(*row)
        if letter.job_id in ids or letter.source_entry in ids or letter.entry_id in ids:
            found.place, found.source, found.entry_id = Place.DEAD, found.keys.dead, letter.entry_id
            found.job_id, found.generation, found.first_ms = letter.job_id, letter.generation, letter.first_ms
            found.deliveries_before, found.consumers = letter.deliveries, letter.consumers
            found.reason, found.error = letter.reason, letter.error
            return True
    return False
