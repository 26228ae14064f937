import json
from math import inf
from typing import Any, NamedTuple

import anyio
import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_events
from tests.conftest import StartProxy
from tests.support.servers import RedisServer
from tests.support.waiting import happens, wait_until
from tests.workers.scene import KEYS, add, enqueue, make_job, make_worker, running, wait_for_settled
from workers import Job, WorkerSettings
from workers.loop.execution import ACKED, Reject, Retry
from workers.loop.facts import DeliveryFacts
from workers.loop.journal import JournalWriter
from workers.protocol.calls.settlement import Verdict
from workers.protocol.connection import commands_client
from workers.protocol.events import EventName, decode_entry
from workers.protocol.messages import RecoveryMode
from workers.runtime.clock import going_by

pytestmark = pytest.mark.anyio


async def accept(_job: Job) -> None:
    """Acknowledge."""


def facts_of(job: Job, verdict: Verdict = ACKED, type_field: str = "") -> dict[str, object]:
    return told_of(Settling(job, verdict, 7), RecoveryMode.REAPER, type_field)


NOW_S, NOW_MS = 100.0, 1_700_000_000_300
"""The same moment on the worker's monotonic clock and on the server's clock."""


def told_of(item: "Settling", mode: RecoveryMode, type_field: str = "", now_ms: int = NOW_MS) -> dict[str, object]:
    with going_by(lambda: NOW_S):
        data = DeliveryFacts('bil"ling', "w.é", mode, type_field, lambda: now_ms).of_settlement(item)
    head = (b"event", b"acked", b"group", b"billing", b"entry", item.job.raw_entry_id)
    words = [word if isinstance(word, bytes) else str(word).encode() for word in data]
    [event] = decode_entry(b"1-0", [*head, *words])
    return dict(event.data)


class Settling(NamedTuple):
    """A delivery with its verdict."""

    job: Any
    verdict: Verdict
    run_ms: int
    started: float = NOW_S


def test_a_redelivered_job_waits_since_its_last_entry_but_is_as_old_as_its_first() -> None:
    job = make_job(b"reaper.job", b"j", b"reaper.first_ms", b"1600000000000", entry_id=b"1700000000200-0")

    facts = facts_of(job)

    assert (facts["enqueued_ms"], facts["ready_ms"]) == (1_600_000_000_000, 1_700_000_000_200)


@pytest.mark.parametrize(
    ("flat", "expected"),
    [
        ((b"type", b"invoice.send"), "invoice.send"),
        ((b"n", b"type", b"type", b'say "hi"', b"m", b"type"), 'say "hi"'),
        ((b"type", b"first", b"type", b"last"), "last"),
        ((b"type", b"two\nlines\xff"), "two\\nlines\\xff"),
        ((b"type", "ü".encode() * 100), "ü" * 64),
        ((b"type", b"x" * 10_000), "x" * 64),
        ((b"type", b""), None),
        ((b"n", b"type"), None),
        ((), None),
    ],
)
def test_a_job_type_is_the_named_field_printable_and_short(flat: tuple[bytes, ...], expected: str | None) -> None:
    assert facts_of(make_job(*flat), type_field="type").get("type") == expected


def test_without_a_field_for_it_no_type_is_journalled() -> None:
    assert "type" not in facts_of(make_job(b"type", b"invoice.send", b"", b"empty name"))


def test_a_field_that_differs_from_job_to_job_costs_bounded_memory() -> None:
    facts = DeliveryFacts("billing", "w", RecoveryMode.REAPER, "type")
    told = [json.loads(facts.of_delivery(make_job(b"type", b"%d" % number)))["type"] for number in range(3_000)]
    assert told == [str(number) for number in range(3_000)]
    assert len(facts._types) <= 1_000


async def test_events_of_all_kinds_carry_the_type_of_their_job(server: RedisServer, client: Redis) -> None:
    async def fail_once(job: Job) -> None:
        if job.fields[b"kind"] == b"bad":
            raise Reject("no")
        if job.deliveries == 1:
            raise Retry("again", delay=0)

    worker = make_worker(server.url, fail_once, journal="full", job_type_field="kind")
    for kind in ("good", "bad"):
        await add(client, {"kind": kind})
    async with running(worker):
        await wait_for_settled(worker, 3)
    types = {(event.event, event.data.get("type")) for event in await read_events(client, KEYS)}
    kinds = {"good": ("delivered", "started", "nacked", "acked"), "bad": ("delivered", "started", "dead_lettered")}
    assert types == {(event, kind) for kind, events in kinds.items() for event in events}


def test_an_explicit_entry_id_does_not_tell_when_the_entry_could_be_read() -> None:
    assert "ready_ms" not in facts_of(make_job(entry_id=b"5-1"))


@pytest.mark.parametrize(
    ("mode", "ready_ms"), [(RecoveryMode.EMBEDDED, 1_700_000_000_250), (RecoveryMode.REAPER, None)]
)
def test_a_claimed_delivery_could_be_read_when_it_was_claimed(mode: RecoveryMode, ready_ms: int | None) -> None:
    """The entry keeps its ID, so its age contains the visibility timeout of the delivery before."""
    job = make_job(times=2)
    assert told_of(Settling(job, ACKED, 7), mode).get("ready_ms") == ready_ms
    job.has_unknown_wait = True
    assert "ready_ms" not in told_of(Settling(job, ACKED, 7), mode)


def test_a_settlement_says_when_its_handler_began() -> None:
    """Also if the settlement comes late, and never before the delivery."""
    late = told_of(Settling(make_job(), ACKED, 7, NOW_S - 20), RecoveryMode.REAPER, now_ms=1_700_000_030_000)
    assert late["begun_ms"] == 1_700_000_010_000
    assert told_of(Settling(make_job(), ACKED, 7, NOW_S - 60), RecoveryMode.REAPER)["begun_ms"] == 1_700_000_000_250
    assert "begun_ms" not in told_of(Settling(make_job(), ACKED, 0, -inf), RecoveryMode.REAPER)


# ---- level full


async def test_deliveries_and_starts_are_journalled_once_and_in_order(server: RedisServer, client: Redis) -> None:
    jobs = await enqueue(client, *range(100))

    async with running(make_worker(server.url, accept, journal="full")) as worker:
        await wait_for_settled(worker, 100)

    events = await read_events(client, KEYS)
    # Settlements travel on another connection: `acked` may overtake the two, which keep their order.
    by_job = {job: [event.event for event in events if event.job == job] for job in jobs}
    assert {job: sorted(names) for job, names in by_job.items()} == {
        job: ["acked", "delivered", "started"] for job in jobs
    }
    assert all(names.index("delivered") < names.index("started") for names in by_job.values())


async def test_jobs_start_in_the_order_of_the_stream_whatever_is_noted_meanwhile(
    server: RedisServer, client: Redis
) -> None:
    started = []

    async def handle(job: Job) -> None:
        started.append(job.id)

    jobs = await enqueue(client, *range(100))
    async with running(make_worker(server.url, handle, journal="full", concurrency=8)) as worker:
        await wait_for_settled(worker, 100)
    assert started == jobs


async def test_an_outage_of_the_journal_holds_up_no_job_and_it_goes_on_afterwards(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    through = await proxy(server)
    settings = WorkerSettings(stream=KEYS.stream, group=KEYS.group, journal="full")
    async with commands_client(through.url) as journal_client, anyio.create_task_group() as tasks:
        writer = JournalWriter(journal_client, settings, "w")
        tasks.start_soon(writer.run)
        writer.note(EventName.STARTED, make_job(entry_id=b"1700000000000-1"))
        await writer.wait_until_answered()

        await through.cut()
        for number in range(20):
            writer.note(EventName.STARTED, make_job(entry_id=b"1700000000000-2%d" % number))
            await happens(writer.wait_until_sent, "nothing waits for the journal")
        await through.mend()
        writer.note(EventName.STARTED, make_job(entry_id=b"1700000000000-3"))
        await wait_until(lambda: has(client, "1700000000000-3"), "the journal goes on")
        await writer.wait_until_answered()
        tasks.cancel_scope.cancel()

    written = await read_events(client, KEYS)
    assert len(written) + writer.dropped == 22


async def test_a_script_that_the_server_forgot_is_loaded_again(server: RedisServer, client: Redis) -> None:
    async with running(make_worker(server.url, accept, journal="full")) as worker:
        await enqueue(client, 1)
        await wait_for_settled(worker, 1)
        await client.script_flush()
        await enqueue(client, 2)
        await wait_for_settled(worker, 2)

        async def goes_on() -> bool:
            [job] = await enqueue(client, 3)
            await wait_until(lambda: has(client, job), "the job is journalled")
            return EventName.STARTED in {event.event for event in await read_events(client, KEYS) if event.job == job}

        await wait_until(goes_on, "starts are journalled again")


async def has(client: Redis, job: str) -> bool:
    return any(event.job == job for event in await read_events(client, KEYS))


async def test_what_cannot_be_sent_is_bounded(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.loop.journal.BACKLOG", 3)
    settings = WorkerSettings(stream=KEYS.stream, group=KEYS.group)
    async with commands_client(server.url) as journal_client:
        writer = JournalWriter(journal_client, settings, "w")
        for _ in range(5):
            writer.note(EventName.STARTED, make_job())

    assert writer.dropped == 2
