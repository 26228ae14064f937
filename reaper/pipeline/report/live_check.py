"""Looks in Redis for the unsettled jobs of a lake, before the report calls one lost. Reads only.

A job moves while it is looked for. So what one look misses is looked for again, and only what every look has missed is
missing.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import Any

from redis.asyncio import Redis

from workers.protocol.events import EventName, LifecycleEvent, events_of
from workers.protocol.keys import GroupKeys, group_keys, stream_of_journal
from workers.protocol.messages import entry_ms, entry_order, pair_up, read_metadata, text
from workers.protocol.scripts import load_script

LIST_SCHEDULED = load_script("reaper.pipeline", "list_scheduled")

LOOKS = 3
"""Looks after which a job counts as missing."""
PAGE = 1_000
LONGEST_WALK = 1_000_000
"""Entries of one stream that are read at most in search of jobs whose entry is unknown."""


class Place(StrEnum):
    """The place of a job."""

    READY = "ready"
    PENDING = "pending"
    SCHEDULED = "scheduled"
    """Waits for its retry, or is a parked suspect."""
    DEAD_LETTERED = "dead_lettered"
    SETTLED = "settled"
    """By now, the journal has its end."""
    ACKNOWLEDGED = "acknowledged"
    """Its entry was acknowledged by a worker that journals nothing."""
    MISSING = "missing"
    """Nowhere. It is lost, unless a worker that journals nothing has settled and deleted it."""
    UNCONFIRMED = "unconfirmed"
    """Not found, but the search was not complete: the journal was trimmed, or there was too much to read."""


_ENDS: Mapping[str, Place] = {EventName.ACKED: Place.SETTLED, EventName.DEAD_LETTERED: Place.DEAD_LETTERED}


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job without an end, as the question ``unsettled_jobs`` returns it. ``stream`` is the journal."""

    stream: str
    group: str
    job: str
    event: str
    at_ms: int
    last_entry: str | None


async def locate(client: Redis, jobs: Sequence[OpenJob], ingested_ms: Mapping[str, int]) -> dict[OpenJob, Place]:
    """Return the place of each job. ``ingested_ms``: the time of the last event in the lake, by journal."""

    def pair(job: OpenJob) -> tuple[str, str]:
        return job.stream, job.group

    found: dict[OpenJob, Place] = {}
    for (journal, group), some in groupby(sorted(jobs, key=lambda job: (*pair(job), job.job)), key=pair):
        keys = group_keys(stream_of_journal(journal), group)
        found |= await _Search(client, keys, ingested_ms.get(journal, 0)).run(list(some))
    return found


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for jobs of one group."""

    client: Redis
    keys: GroupKeys
    ingested_ms: int

    async def run(self, jobs: Sequence[OpenJob]) -> dict[OpenJob, Place]:
        found: dict[OpenJob, Place] = {}
        certain = True
        for _ in range(LOOKS):
            missing = {job.job: job for job in jobs if job not in found}
            if missing:
                places, is_certain = await self._look(missing)
                certain &= is_certain
                found |= {missing[name]: place for name, place in places.items()}
        return {job: found.get(job, Place.MISSING if certain else Place.UNCONFIRMED) for job in jobs}

    async def _look(self, jobs: Mapping[str, OpenJob]) -> tuple[dict[str, Place], bool]:
        """Look once everywhere. Return the places that were found, and whether the search was complete."""
        found: dict[str, Place] = {}
        told, is_whole = await self._read_journal(jobs)
        found |= {name: _ENDS[job.event] for name, job in told.items() if job.event in _ENDS}
        found |= dict.fromkeys(await self._dead(told), Place.DEAD_LETTERED)
        found |= dict.fromkeys(await self._scheduled(told.keys() - found.keys()), Place.SCHEDULED)
        for name, job in told.items():
            if name not in found and job.last_entry:
                place = await self._place_of(name, job.last_entry)
                if place:
                    found[name] = place
        strays = {name: job for name, job in told.items() if name not in found}
        walked, is_all = await self._walk(strays)
        return found | walked, is_whole and is_all

    # ---- the journal, since the lake was filled

    async def _read_journal(self, jobs: Mapping[str, OpenJob]) -> tuple[dict[str, OpenJob], bool]:
        """Bring the jobs up to date. Also return whether the journal continues where the lake ends."""
        told = dict(jobs)
        async for entry_id, flat in self._entries(self.keys.journal, str(self.ingested_ms)):
            for event in events_of(entry_id, flat):
                if event.job in told and event.data.get("group") == self.keys.group:
                    told[event.job] = _brought_up_to_date(told[event.job], event)
        return told, await self._journal_goes_on()

    async def _journal_goes_on(self) -> bool:
        """Return whether the lake has every event that was trimmed from the journal."""
        first = await self.client.execute_command("XRANGE", self.keys.journal, "-", "+", "COUNT", 1)
        if not first and await self.client.exists(self.keys.journal):
            info = await self.client.xinfo_stream(self.keys.journal)
            last = {text(name): value for name, value in info.items()}["last-generated-id"]
            return entry_ms(last) <= self.ingested_ms
        return bool(first) and entry_ms(first[0][0]) <= self.ingested_ms

    # ---- places

    async def _dead(self, jobs: Mapping[str, OpenJob]) -> set[str]:
        """Return those of ``jobs`` that lie among the dead letters."""
        since = min((job.at_ms for job in jobs.values()), default=0)
        found = set()
        async for entry_id, flat in self._entries(self.keys.dead, str(since)):
            found.add(_job_id(entry_id, flat))
        return found & jobs.keys()

    async def _scheduled(self, names: Collection[str]) -> set[str]:
        found: set[str] = set()
        cursor: bytes = b"0"
        while names:
            cursor, *page = await LIST_SCHEDULED.run(self.client, [self.keys.schedule], [cursor, PAGE])
            found |= {text(name) for name in page}
            if cursor == b"0":
                break
        return found & set(names)

    async def _place_of(self, name: str, entry_id: str) -> Place | None:
        """Return the place of a job's entry. Stream and retry stream may both have an entry of that ID."""
        for source in (self.keys.stream, self.keys.retry):
            rows = await self.client.execute_command("XRANGE", source, entry_id, entry_id)
            if rows and _job_id(*rows[0]) == name:
                return await self._state_in(source, entry_id)
        return None

    async def _state_in(self, source: str, entry_id: str) -> Place | None:
        last_delivered = await self._last_delivered(source)
        if last_delivered is None:
            return None  # the group reads nothing there
        if await self.client.execute_command("XPENDING", source, self.keys.group, entry_id, entry_id, 1):
            return Place.PENDING
        return Place.READY if entry_order(entry_id) > entry_order(last_delivered) else Place.ACKNOWLEDGED

    async def _last_delivered(self, source: str) -> str | None:
        for info in await self.client.xinfo_groups(source):
            facts = {text(name): value for name, value in info.items()}
            if text(facts["name"]) == self.keys.group:
                return text(facts["last-delivered-id"])
        return None

    async def _walk(self, jobs: Mapping[str, OpenJob]) -> tuple[dict[str, Place], bool]:
        """Look for jobs whose entry is unknown: a retry that became ready again is a new entry."""
        found: dict[str, Place] = {}
        if not jobs:
            return found, True
        since = min(job.at_ms for job in jobs.values())
        for source in (self.keys.stream, self.keys.retry):
            walked = 0
            async for entry_id, flat in self._entries(source, str(since)):
                walked += 1
                if walked > LONGEST_WALK:
                    return found, False
                name = _job_id(entry_id, flat)
                is_later = name in jobs and entry_ms(entry_id) >= jobs[name].at_ms
                place = await self._state_in(source, text(entry_id)) if is_later else None
                if place:
                    found[name] = place
        return found, True

    async def _entries(self, stream: str, start: str) -> AsyncIterator[tuple[bytes, Sequence[bytes]]]:
        while True:
            page: Any = await self.client.execute_command("XRANGE", stream, start, "+", "COUNT", PAGE)
            for entry_id, flat in page:
                yield entry_id, flat
            if len(page) < PAGE:
                return
            start = "(" + text(page[-1][0])


def _job_id(entry_id: bytes, flat: Sequence[bytes]) -> str:
    return text(read_metadata(entry_id, pair_up(flat)).job_id)


def _brought_up_to_date(job: OpenJob, event: LifecycleEvent) -> OpenJob:
    """Return the job after an event. A refused write changes nothing; a retry or a suspect lies in no stream."""
    if event.event == EventName.REFUSED:
        return job
    lies_nowhere = event.event == EventName.SUSPECTED or "due_ms" in event.data
    entry = None if lies_nowhere else event.data.get("new_entry", event.data.get("entry"))
    return replace(job, event=event.event, at_ms=event.at_ms, last_entry=entry)


def open_jobs(rows: Iterable[Mapping[str, Any]]) -> list[OpenJob]:
    """Return rows of the question ``unsettled_jobs`` as jobs to look for."""
    return [OpenJob(**{name: row[name] for name in OpenJob.__dataclass_fields__}) for row in rows]
