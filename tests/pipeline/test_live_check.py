"""Jobs that the journal leaves open are looked for in a real Redis before anybody calls one lost."""

from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.pipeline.report.findings import Findings
from reaper.pipeline.report.live import look_for_unsettled
from reaper.pipeline.report.live_check import OpenJob, Place, locate
from tests.support.servers import RedisServer
from workers.protocol.events import EventName, encode_data
from workers.protocol.keys import group_keys
from workers.protocol.scripts import Script

pytestmark = pytest.mark.anyio

KEYS = group_keys("orders", "billing")
PARK = """
return redis.call('ZADD', KEYS[1], ARGV[1], cmsgpack.pack({
  v = 1, kind = ARGV[2], job_id = ARGV[3], user = {}, deliveries = 1, generation = '0', first_ms = '1', consumers = '',
  entry_id = '1-1',
}))
"""


async def _add(client: Redis, stream: str, job: str = "", **fields: str) -> str:
    words = [word for pair in ({"reaper.job": job} if job else {}).items() for word in pair]
    words += [word for name, value in fields.items() for word in (name.replace("__", "."), value)]
    entry_id: bytes = await client.execute_command("XADD", stream, "*", *(words or ["n", "1"]))
    return entry_id.decode()


async def _journal(client: Redis, name: EventName, job: str, **data: Any) -> int:
    text = encode_data({"group": KEYS.group, **data})
    entry = await client.execute_command("XADD", KEYS.journal, "*", "event", name, "job", job, "data", text)
    return int(entry.split(b"-")[0])


async def _read(client: Redis, stream: str, count: int) -> None:
    await client.execute_command("XREADGROUP", "GROUP", KEYS.group, "c", "COUNT", count, "STREAMS", stream, ">")


def _open(job: str, last_entry: str | None, event: str = "recovered", at_ms: int = 1) -> OpenJob:
    return OpenJob(KEYS.journal, KEYS.group, job, event, at_ms, last_entry)


@pytest.fixture
async def group(client: Redis) -> Redis:
    for stream in (KEYS.stream, KEYS.retry):
        await client.execute_command("XGROUP", "CREATE", stream, KEYS.group, "0", "MKSTREAM")
    return client


async def test_every_job_is_found_where_it_is(group: Redis) -> None:
    client = group
    begin = await _journal(client, EventName.RECOVERED, "before the lake ends")
    acknowledged, pending = [await _add(client, KEYS.stream, job) for job in ("acknowledged", "pending")]
    held = await _add(client, KEYS.retry, "held")
    await _read(client, KEYS.stream, 2)
    await _read(client, KEYS.retry, 1)
    await client.execute_command("XACK", KEYS.stream, KEYS.group, acknowledged)
    ready, renewed = [await _add(client, KEYS.stream, job) for job in ("ready", "moved since")]
    bare = await _add(client, KEYS.stream)
    await _add(client, KEYS.stream, "due again")
    for score, kind, job in ((2**52, "suspect", "parked"), (99, "retry", "delayed")):
        await client.execute_command("EVAL", PARK, 1, KEYS.schedule, score, kind, job)
    await client.zadd(KEYS.schedule, {"somebody else's": 1})
    await _add(client, KEYS.dead, "dead", reaper__dead__stream="orders")
    await _journal(client, EventName.ACKED, "done since", entry="1-0")
    await _journal(client, EventName.NACKED, "moved since", entry="1-0", new_entry=renewed)
    await _journal(client, EventName.SUSPECTED, "parked", entry="1-0")
    await _journal(client, EventName.ACKED, "of another group", entry="1-0", group="other")
    jobs = {
        _open("acknowledged", acknowledged): Place.ACKNOWLEDGED,
        _open("pending", pending): Place.PENDING,
        _open("held", held): Place.PENDING,
        _open("ready", ready): Place.READY,
        _open(bare, bare, "started"): Place.READY,
        _open("due again", None, "nacked"): Place.READY,
        _open("parked", "1-0"): Place.SCHEDULED,
        _open("delayed", None, "nacked"): Place.SCHEDULED,
        _open("dead", None): Place.DEAD_LETTERED,
        _open("done since", "1-0"): Place.SETTLED,
        _open("moved since", "1-0"): Place.READY,
        _open("of another group", "1-0"): Place.MISSING,
        _open("gone", "1-0"): Place.MISSING,
        _open("gone retry", None, "nacked"): Place.MISSING,
    }
    assert await locate(client, list(jobs), {KEYS.journal: begin}) == jobs


async def test_nothing_is_called_missing_where_the_journal_was_trimmed_unread(group: Redis) -> None:
    ingested = await _journal(group, EventName.RECOVERED, "gone")
    await _journal(group, EventName.ACKED, "gone", entry="1-0")
    await group.execute_command("XTRIM", KEYS.journal, "MAXLEN", 0)
    await _journal(group, EventName.RECOVERED, "another", entry="1-0")
    job = _open("gone", "1-0")
    assert await locate(group, [job], {KEYS.journal: ingested - 1}) == {job: Place.UNCONFIRMED}


async def test_a_journal_that_was_trimmed_behind_the_lake_hides_nothing(group: Redis) -> None:
    ingested = await _journal(group, EventName.RECOVERED, "gone")
    await group.execute_command("XTRIM", KEYS.journal, "MAXLEN", 0)
    job = _open("gone", "1-0")
    assert await locate(group, [job], {KEYS.journal: ingested}) == {job: Place.MISSING}


async def test_schedules_are_listed_page_by_page(group: Redis) -> None:
    script = Script("reaper.pipeline", "list_scheduled")
    for n in range(700):
        await group.execute_command("EVAL", PARK, 1, KEYS.schedule, n, "retry", f"job {n}")
    found, cursor, pages = set[bytes](), b"0", 0
    while pages == 0 or cursor != b"0":
        cursor, *names = await script.run(group, [KEYS.schedule], [cursor, 100])
        found |= set(names)
        pages += 1
    assert found == {f"job {n}".encode() for n in range(700)}
    assert pages > 1


async def test_what_was_found_is_counted_and_the_missing_are_named(group: Redis, server: RedisServer) -> None:
    ingested = await _journal(group, EventName.RECOVERED, "gone")
    entry = await _add(group, KEYS.stream, "ready")
    facts = {"stream": KEYS.journal, "group": KEYS.group, "event": "recovered", "at_ms": 1}
    rows = [{**facts, "job": "gone", "last_entry": "1-0"}, {**facts, "job": "ready", "last_entry": entry}]
    findings = Findings(
        {},
        {
            "unsettled": [{**facts, "jobs": 5}],
            "unsettled_jobs": rows,
            "extents": [{"stream": KEYS.journal, "last_ms": ingested}],
        },
    )
    told = await look_for_unsettled(findings, server.url)
    assert (told["places"], told["lost"], told["not_checked"]) == ({"ready": 1, "missing": 1}, rows[:1], 3)
