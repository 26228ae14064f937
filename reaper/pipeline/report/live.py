"""Searches Redis for the oldest unsettled jobs of a lake, before the report calls one lost. Reads only."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.operations.job_search import Place, find_jobs
from reaper.pipeline.report.findings import Findings
from workers.protocol.address import shown_address
from workers.protocol.connection import commands_client
from workers.protocol.errors import UnreachableError
from workers.protocol.keys import group_keys, stream_of_journal
from workers.protocol.messages import entry_ms, text
from workers.protocol.server import check_server

MOST = 50
"""Jobs that are searched, which is the number that the page names."""
LOOKS = 3
"""A job may move during a search, so it is only lost if this many searches miss it."""
DEPTH = 100_000
"""Entries of each stream and journal that one search reads."""
LOST, UNCONFIRMED = "lost", "unconfirmed"
"""Further places of a job that was not found, and of one that may be in a trimmed or unread part."""


async def look_for_unsettled(findings: Findings, redis_url: str) -> dict[str, Any]:
    """Return ``at``, ``places`` (counts), ``lost`` (rows) and ``not_checked`` (a count) of the unsettled jobs.

    Raises UnreachableError or UnsupportedServerError.
    """
    rows = findings.tables["unsettled_jobs"][:MOST]
    ingested_ms = {row["stream"]: row["last_ms"] for row in findings.tables["extents"]}
    client = commands_client(redis_url)
    try:
        await check_server(client, redis_url)
        places: dict[tuple[str, str, str], str] = {}
        for stream, group in dict.fromkeys((row["stream"], row["group"]) for row in rows):
            jobs = [row["job"] for row in rows if (row["stream"], row["group"]) == (stream, group)]
            found = await _places_of(client, stream, group, jobs, ingested_ms.get(stream, 0))
            places |= {(stream, group, job): place for job, place in found.items()}
    except RedisError as error:
        raise UnreachableError(f"Redis at {shown_address(redis_url)!r} failed: {error}") from error
    finally:
        await client.aclose()
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "places": dict(Counter(places.values())),
        "lost": [row for row in rows if places[row["stream"], row["group"], row["job"]] == LOST],
        "not_checked": findings.total("unsettled", "jobs") - len(rows),
    }


async def _places_of(client: Redis, journal: str, group: str, jobs: Iterable[str], ingested_ms: int) -> dict[str, str]:
    """Return the place of each job of one group. Each search reads the journal once, for all missing jobs."""
    keys, places = group_keys(stream_of_journal(journal), group), dict.fromkeys(jobs, LOST)
    for _ in range(LOOKS):
        missing = [job for job, place in places.items() if place in (LOST, UNCONFIRMED)]
        if not missing:
            return places
        for job, found in (await find_jobs(client, keys, missing, depth=DEPTH)).items():
            if found.place is not Place.UNKNOWN:
                places[job] = str(found.place)
            elif not found.complete:
                places[job] = UNCONFIRMED
    if LOST in places.values() and not await _goes_on(client, keys.journal, ingested_ms):
        return {job: UNCONFIRMED if place == LOST else place for job, place in places.items()}
    return places


async def _goes_on(client: Redis, journal: str, ingested_ms: int) -> bool:
    """Return whether the lake has every event that was trimmed from the journal."""
    if not await client.exists(journal):
        return False
    info: Any = await client.xinfo_stream(journal)
    told = {text(name): value for name, value in info.items()}
    oldest = told["first-entry"][0] if told["first-entry"] else told["last-generated-id"]
    return entry_ms(oldest) <= ingested_ms
