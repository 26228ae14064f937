"""Jobs that the journal leaves open are looked for in a real Redis before anybody calls one lost."""

from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.pipeline.analysis.answers import Row
from reaper.pipeline.report import live
from reaper.pipeline.report.findings import Findings
from tests.support.servers import RedisServer
from workers.protocol.events import EventName, event_fields
from workers.protocol.keys import group_keys

pytestmark = pytest.mark.anyio

KEYS = group_keys("orders", "billing")
PARK = """
return redis.call('ZADD', KEYS[1], ARGV[1], cmsgpack.pack({
  v = 1, kind = ARGV[2], job_id = ARGV[3], user = {}, deliveries = 1, generation = '0', first_ms = '1', consumers = '',
  entry_id = '1-1', copies = 0, waits = 0, hand_backs = 0,
}))
"""


async def _add(client: Redis, stream: str, job: str = "", **fields: str) -> str:
    words = [word for pair in ({"reaper.job": job} if job else {}).items() for word in pair]
    words += [word for name, value in fields.items() for word in (name.replace("__", "."), value)]
    entry_id: bytes = await client.execute_command("XADD", stream, "*", *(words or ["n", "1"]))
    return entry_id.decode()


async def _journal(client: Redis, name: EventName, job: str, **data: Any) -> int:
    words = event_fields(name, job=job, **{"group": KEYS.group, **data})
    entry = await client.execute_command("XADD", KEYS.journal, "*", *words)
    return int(entry.split(b"-")[0])


async def _read(client: Redis, stream: str, count: int) -> None:
    await client.execute_command("XREADGROUP", "GROUP", KEYS.group, "c", "COUNT", count, "STREAMS", stream, ">")


async def _looked_for(server: RedisServer, ingested_ms: int, *jobs: str) -> Any:
    """Look for jobs that were recovered, and unsettled when the lake was filled."""
    common = {"stream": KEYS.journal, "group": KEYS.group, "event": "recovered"}
    rows: list[Row] = [{**common, "job": job, "at_ms": 1, "last_entry": "1-0", "n": len(jobs)} for job in jobs]
    extents = [{"stream": KEYS.journal, "last_ms": ingested_ms}]
    unsettled = [{**common, "jobs": len(jobs)}]
    tables = {"unsettled": unsettled, "unsettled_jobs": rows, "extents": extents}
    return await live.look_for_unsettled(Findings({}, tables), server.url)


@pytest.fixture
async def group(client: Redis) -> Redis:
    for stream in (KEYS.stream, KEYS.retry):
        await client.execute_command("XGROUP", "CREATE", stream, KEYS.group, "0", "MKSTREAM")
    return client


async def test_jobs_are_found_where_they_are_and_the_others_are_lost(group: Redis, server: RedisServer) -> None:
    client = group
    begin = await _journal(client, EventName.RECOVERED, "before the lake ends")
    acknowledged, _ = [await _add(client, KEYS.stream, job) for job in ("acknowledged", "pending")]
    await _add(client, KEYS.retry, "held")
    await _read(client, KEYS.stream, 2)
    await _read(client, KEYS.retry, 1)
    await client.execute_command("XACK", KEYS.stream, KEYS.group, acknowledged)
    for job in ("ready", "due again"):
        await _add(client, KEYS.stream, job)
    for score, kind, job in ((2**52, "quarantine", "quarantined"), (99, "retry", "delayed")):
        await client.execute_command("EVAL", PARK, 1, KEYS.schedule, score, kind, job)
    await _add(client, KEYS.dead, "dead", reaper__dead__stream="orders")
    await _journal(client, EventName.ACKED, "done since", entry="1-0")
    await _journal(client, EventName.ACKED, "of another group", entry="1-0", group="other")
    found = {
        "settled": ["acknowledged", "done since"],
        "pending": ["pending", "held"],
        "ready": ["ready", "due again"],
        "quarantined": ["quarantined"],
        "scheduled": ["delayed"],
        "dead": ["dead"],
        "lost": ["of another group", "gone"],
    }
    told = await _looked_for(server, begin, *(job for jobs in found.values() for job in jobs))
    assert told["places"] == {place: len(jobs) for place, jobs in found.items()}
    assert [row["job"] for row in told["lost"]] == found["lost"]
    assert told["not_checked"] == 0


async def test_the_journal_is_read_once_for_all_jobs(group: Redis, server: RedisServer) -> None:
    begin = await _journal(group, EventName.RECOVERED, "another")
    jobs = [await _add(group, KEYS.stream) for _ in range(5)]
    await group.execute_command("CONFIG", "RESETSTAT")
    assert (await _looked_for(server, begin, *jobs))["places"] == {"ready": 5}
    stats: Any = await group.info("commandstats")
    assert stats["cmdstat_xrevrange"]["calls"] == 1  # a named stream is not searched for


async def test_nothing_is_called_lost_where_the_journal_was_trimmed_unread(group: Redis, server: RedisServer) -> None:
    ingested = await _journal(group, EventName.RECOVERED, "gone")
    await _journal(group, EventName.ACKED, "gone", entry="1-0")
    await group.execute_command("XTRIM", KEYS.journal, "MAXLEN", 0)
    await _journal(group, EventName.RECOVERED, "another", entry="1-0")
    assert (await _looked_for(server, ingested - 1, "gone"))["places"] == {"unconfirmed": 1}


async def test_nothing_is_called_lost_where_there_is_too_much_to_search(
    group: Redis, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "DEPTH", 2)
    ingested = await _journal(group, EventName.RECOVERED, "gone")
    for _ in range(3):
        await _add(group, KEYS.stream, "another")
    assert (await _looked_for(server, ingested, "gone"))["places"] == {"unconfirmed": 1}


async def test_a_journal_that_was_trimmed_behind_the_lake_hides_nothing(group: Redis, server: RedisServer) -> None:
    ingested = await _journal(group, EventName.RECOVERED, "gone")
    await group.execute_command("XTRIM", KEYS.journal, "MAXLEN", 0)
    assert (await _looked_for(server, ingested, "gone"))["places"] == {"lost": 1}


async def test_the_oldest_jobs_are_looked_for_and_the_others_counted(group: Redis, server: RedisServer) -> None:
    ingested = await _journal(group, EventName.RECOVERED, "gone")
    told = await _looked_for(server, ingested, *(f"job-{n}" for n in range(live.MOST + 3)))
    assert (told["places"], told["not_checked"]) == ({"lost": live.MOST}, 3)
