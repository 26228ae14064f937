"""Finds a job by its ID in the journal, the streams, the schedules and the dead letters. Reads only.

Redis keeps no index of job IDs, so the search reads each stream backwards, down to a given depth.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from redis.asyncio import Redis

from reaper.operations.dead_letters import read_dead_letter
from workers.protocol.calls.group_moves import QUARANTINE_SCORE
from workers.protocol.events import EventName, LifecycleEvent, events_of
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import (
    CLAIM_READY_MS,
    FIELD_QUARANTINED,
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
"""Entries of each stream and journal that are searched."""
MOST_COPIED_FIELDS = 3_487
"""Fields of an entry that a script can copy, beside ours (``MAX_WORDS`` in ``lua/prelude``)."""
PAGE = 500
MOST_EVENTS = 100
_ENDS = frozenset({EventName.ACKED, EventName.LOST_PAYLOAD})


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
    """Neither in Redis nor in the part of the journal that was searched."""


@dataclass(slots=True, kw_only=True)
class FoundJob:
    """The facts that Redis has of one job in one group. Instants are in ms of the server's clock."""

    keys: GroupKeys
    wanted: str
    """The job ID or entry ID to search for."""
    job_id: str = ""
    place: Place = Place.UNKNOWN
    source: str = ""
    """Key that holds the entry or the packed job."""
    entry_id: str = ""
    owner: str = ""
    idle_ms: int = 0
    fields: int = 0
    was_quarantined: bool = False
    times_delivered: int = 0
    """Deliveries of this entry."""
    deliveries_before: int = 0
    """Counted deliveries before this entry."""
    generation: int = 0
    first_ms: int = 0
    own_visibility_ms: int = 0
    """The visibility timeout that the job has of its own, or 0."""
    due_ms: int = 0
    """When a scheduled job becomes ready."""
    reason: str = ""
    """Why it is dead."""
    error: str = ""
    events: list[LifecycleEvent] = field(default_factory=list)
    """Its lifecycle events, oldest first."""
    complete: bool = True
    """The search has read everything."""

    @property
    def is_known(self) -> bool:
        """Tell whether the search has found anything of the job."""
        return self.place is not Place.UNKNOWN or bool(self.events)

    @property
    def is_given_back(self) -> bool:
        """Tell whether a worker has given the pending entry back where it is."""
        return not self.owner or self.idle_ms >= CLAIM_READY_MS

    @property
    def ids(self) -> set[str]:
        """The names by which the job is found."""
        return {self.wanted, self.job_id} - {""}

    def take_entry(self, source: str, row: Sequence[Any], place: Place) -> None:
        """Note an entry of the job, and its reserved fields."""
        metadata = read_metadata(row[0], pair_up(row[1]))
        self.place, self.source, self.entry_id, self.fields = place, source, text(row[0]), len(row[1]) // 2
        self.job_id, self.generation, self.first_ms = text(metadata.job_id), metadata.generation, metadata.first_ms
        self.deliveries_before, self.own_visibility_ms = metadata.deliveries, metadata.visibility_ms
        self.was_quarantined = FIELD_QUARANTINED in row[1][::2]


async def find_job(client: Redis, keys: GroupKeys, wanted: str, *, depth: int = DEFAULT_DEPTH) -> FoundJob:
    """Search for a job in one group. Raises redis-py's errors."""
    return (await find_jobs(client, keys, [wanted], depth=depth))[wanted]


async def find_jobs(
    client: Redis, keys: GroupKeys, wanted: Iterable[str], *, depth: int = DEFAULT_DEPTH
) -> dict[str, FoundJob]:
    """Search for jobs in one group, and read its journal once for all of them. Raises redis-py's errors."""
    jobs = {one: FoundJob(keys=keys, wanted=one) for one in wanted}
    await _read_events(client, keys, jobs, depth)
    for job in jobs.values():
        settled = await _find_entry(client, job, depth)
        if job.place is not Place.UNKNOWN or await _find_scheduled(client, job) or await _find_dead(client, job, depth):
            continue
        if settled:  # comes last, because the job of an acknowledged entry may be in a schedule or a dead letter
            job.take_entry(*settled, Place.SETTLED)
        elif any(event.event in _ENDS for event in job.events):  # Redis has deleted its entry
            job.place = Place.SETTLED
    return jobs


async def _read_events(client: Redis, keys: GroupKeys, jobs: Mapping[str, FoundJob], depth: int) -> None:
    """Collect the events of each job. An entry ID leads to the job that had it."""
    wanted_by = {wanted: {wanted} for wanted in jobs}
    """The searched names of each job ID, which are the ID itself and entries that it had."""
    async for row in _newest_first(client, keys.journal, depth, jobs.values()):
        for event in reversed(events_of(*row)):
            if event.data.get("group", keys.group) != keys.group:
                continue
            entries = {event.data.get("entry"), event.data.get("new_entry")} & jobs.keys()
            wanted_by.setdefault(event.job, set()).update(map(str, entries))
            for wanted in wanted_by[event.job]:
                if len(jobs[wanted].events) < MOST_EVENTS:
                    jobs[wanted].events.append(event)
    for job in jobs.values():
        if job.events:
            job.job_id, job.generation = job.events[0].job, job.events[0].number("generation") or 0
        job.events.reverse()


async def _newest_first(
    client: Redis, key: str, depth: int, jobs: Collection[FoundJob]
) -> AsyncIterator[Sequence[Any]]:
    """Read at most ``depth`` entries of a stream backwards, and note in each job if there may be more."""
    end, left = "+", depth
    while left > 0:
        rows: Any = await client.xrevrange(key, end, "-", min(PAGE, left))
        for row in rows:
            yield row
        if len(rows) < min(PAGE, left):
            return
        left -= len(rows)
        end = f"({text(rows[-1][0])}"
    for job in jobs:
        job.complete = False


# --- streams ------------------------------------------------------------------------------------------------


async def _find_entry(client: Redis, job: FoundJob, depth: int) -> tuple[str, Sequence[Any]] | None:
    """Find an entry that is pending or ready. Without one, return the stream and the row of an acknowledged entry."""
    settled: tuple[str, Sequence[Any]] | None = None
    group, sources = job.keys.group, (job.keys.retry, job.keys.stream)
    last_delivered = {source: await _last_delivered(client, source, group) for source in sources}
    async for source, row in _entries_of(client, [one for one in sources if last_delivered[one]], job, depth):
        pending: Any = await client.execute_command("XPENDING", source, group, row[0], row[0], 1)
        if pending or entry_order(row[0]) > entry_order(last_delivered[source] or b""):
            job.take_entry(source, row, Place.READY)
            if pending:
                await _take_delivery(client, job, Pending(*pending[0]))
            return None
        settled = settled or (source, row)
    return settled


async def _entries_of(
    client: Redis, sources: Sequence[str], job: FoundJob, depth: int
) -> AsyncIterator[tuple[str, Sequence[Any]]]:
    """Yield the job's entries with their stream. Entries that the journal names come first."""
    names = [str(event.data.get(name)) for name in ("new_entry", "entry") for event in reversed(job.events)]
    named = [name for name in dict.fromkeys((*names, job.wanted, job.job_id)) if is_entry_id(name)]
    for source in sources:
        for entry_id in named:
            rows: Any = await client.xrange(source, entry_id, entry_id)
            for row in rows:
                yield source, row
    for source in sources:
        async for row in _newest_first(client, source, depth, [job]):
            job_id = read_metadata(row[0], pair_up(row[1])).job_id
            if {text(job_id), on_one_line(job_id)} & job.ids and text(row[0]) not in named:
                yield source, row


async def _last_delivered(client: Redis, source: str, group: str) -> bytes | None:
    if await client.type(source) != b"stream":
        return None
    groups: Any = await client.xinfo_groups(source)
    return next((one["last-delivered-id"] for one in groups if text(one["name"]) == group), None)


async def _take_delivery(client: Redis, job: FoundJob, pending: Pending) -> None:
    """Note a delivery. With policy `in-place`, workers read an entry that was given back, so it is ready."""
    job.place, job.owner = Place.PENDING, text(pending.consumer)
    job.idle_ms, job.times_delivered = int(pending.idle_ms), int(pending.delivery_count)
    policy = await client.hget(job.keys.settings, "policy")
    if job.is_given_back and policy == Redelivery.IN_PLACE.encode():
        job.place, job.owner, job.idle_ms = Place.READY, "", 0


# --- schedules and dead letters -----------------------------------------------------------------------------


async def _find_scheduled(client: Redis, job: FoundJob) -> bool:
    """Search the schedules, page by page, for a job ID or the ID of the entry that the job had."""
    script = load_script("reaper", "find_scheduled")
    for schedule in (job.keys.schedule, job.keys.stream_schedule):
        for wanted in job.ids:
            next_rank, found = 0, []
            while next_rank >= 0:
                next_rank, *found = await script.run(client, [schedule], [wanted, next_rank, PAGE])
            if found:
                _take_scheduled(job, schedule, found)
                return True
    return False


def _take_scheduled(job: FoundJob, schedule: str, found: Sequence[Any]) -> None:
    score, job_id, deliveries, generation, first_ms, entry_id = found
    job.source, job.entry_id, job.job_id = schedule, text(entry_id), text(job_id)
    job.deliveries_before, job.generation = whole_number(deliveries, 0), whole_number(generation, 0)
    job.first_ms, job.place, job.due_ms = whole_number(first_ms, 0), Place.SCHEDULED, int(float(score))
    if float(score) >= QUARANTINE_SCORE:
        job.place, job.due_ms = Place.QUARANTINED, 0


async def _find_dead(client: Redis, job: FoundJob, depth: int) -> bool:
    async for row in _newest_first(client, job.keys.dead, depth, [job]):
        letter = read_dead_letter(*row)
        if job.ids & {letter.job, letter.entry, letter.id}:
            job.place, job.source, job.entry_id = Place.DEAD, job.keys.dead, letter.id
            job.job_id, job.generation, job.first_ms = letter.job, letter.generation, letter.first_ms
            job.deliveries_before, job.reason, job.error = letter.deliveries, letter.reason, letter.error
            return True
    return False
