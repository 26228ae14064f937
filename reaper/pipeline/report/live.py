"""Looks in Redis for the oldest unsettled jobs of a lake, before the report calls one lost. Reads only."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.operations.job_search import Place, find_job
from reaper.pipeline.analysis.answers import Row
from reaper.pipeline.report.findings import Findings
from workers.protocol.address import shown_address
from workers.protocol.connection import commands_client
from workers.protocol.errors import UnreachableError
from workers.protocol.keys import group_keys, stream_of_journal
from workers.protocol.messages import entry_ms, text
from workers.protocol.server_check import check_server

MOST = 50
"""Jobs that are looked for: as many as the page names."""
LOOKS = 3
"""A job moves while it is looked for, so it is only lost if so many looks miss it."""
DEPTH = 100_000
"""Entries of each stream and journal that one look reads."""
LOST, UNCONFIRMED = "lost", "unconfirmed"
"""Places beside those of `Place`: a job that is nowhere, and one that could be where nobody can look any more."""


async def look_for_unsettled(findings: Findings, redis_url: str) -> dict[str, Any]:
    """Return where the unsettled jobs are: ``at``, ``places`` (counts), ``lost`` (rows), ``not_checked`` (a count).

    Raises UnreachableError or UnsupportedServerError.
    """
    rows = findings.tables["unsettled_jobs"][:MOST]
    ingested_ms = {row["stream"]: row["last_ms"] for row in findings.tables["extents"]}
    client = commands_client(redis_url)
    try:
        await check_server(client, redis_url)
        places = [await _place_of(client, row, ingested_ms.get(row["stream"], 0)) for row in rows]
    except RedisError as error:
        raise UnreachableError(f"Redis at {shown_address(redis_url)!r} failed: {error}") from error
    finally:
        await client.aclose()
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "places": dict(Counter(places)),
        "lost": [row for row, place in zip(rows, places, strict=True) if place == LOST],
        "not_checked": findings.total("unsettled", "jobs") - len(rows),
    }


async def _place_of(client: Redis, row: Row, ingested_ms: int) -> str:
    keys, certain = group_keys(stream_of_journal(row["stream"]), row["group"]), True
    for _ in range(LOOKS):
        job = await find_job(client, keys, row["job"], depth=DEPTH)
        if job.place is not Place.UNKNOWN:
            return str(job.place)
        certain = certain and job.complete
    return LOST if certain and await _goes_on(client, keys.journal, ingested_ms) else UNCONFIRMED


async def _goes_on(client: Redis, journal: str, ingested_ms: int) -> bool:
    """Return whether the lake has every event that was trimmed from the journal."""
    if not await client.exists(journal):
        return False
    info: Any = await client.xinfo_stream(journal)
    told = {text(name): value for name, value in info.items()}
    oldest = told["first-entry"][0] if told["first-entry"] else told["last-generated-id"]
    return entry_ms(oldest) <= ingested_ms
