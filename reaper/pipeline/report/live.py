"""Looks in Redis for the unsettled jobs of a lake, and counts the places where it finds them."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from redis.exceptions import RedisError

from reaper.pipeline.report.findings import Findings
from reaper.pipeline.report.live_check import Place, locate, open_jobs
from workers.protocol.address import shown_address
from workers.protocol.connection import check_server, commands_client
from workers.protocol.errors import UnreachableError


async def look_for_unsettled(findings: Findings, redis_url: str) -> dict[str, Any]:
    """Return where the unsettled jobs are: ``at``, ``places`` (counts), ``lost`` (rows), ``not_checked`` (a count).

    Raises UnreachableError or UnsupportedServerError.
    """
    rows = findings.tables["unsettled_jobs"]
    jobs = open_jobs(rows)
    ingested_ms = {row["stream"]: row["last_ms"] for row in findings.tables["extents"]}
    client = commands_client(redis_url)
    try:
        await check_server(client, redis_url)
        places = await locate(client, jobs, ingested_ms)
    except RedisError as error:
        raise UnreachableError(f"Redis at {shown_address(redis_url)!r} failed: {error}") from error
    finally:
        await client.aclose()
    counted = Counter(places.values())
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "places": {place.value: counted[place] for place in Place if counted[place]},
        "lost": [row for row, job in zip(rows, jobs, strict=True) if places[job] is Place.MISSING],
        "not_checked": findings.total("unsettled", "jobs") - len(rows),
    }
