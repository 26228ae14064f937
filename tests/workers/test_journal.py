from math import inf

import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_events
from tests.support.servers import RedisServer
from tests.workers.scene import KEYS, add, make_job, make_worker, running, wait_for_settled
from workers import Job
from workers.loop.execution import ACKED, Reject, Retry
from workers.loop.facts import DeliveryFacts
from workers.loop.in_flight import Delivery
from workers.protocol.calls.moves import Verdict
from workers.protocol.events import decode_entry
from workers.protocol.messages import RecoveryMode
from workers.runtime.clock import going_by
from workers.settings import WorkerSettings

pytestmark = pytest.mark.anyio


def facts_of(job: Job, verdict: Verdict = ACKED, type_field: str = "") -> dict[str, object]:
    return told_of(settling(job, verdict, 7), RecoveryMode.REAPER, type_field)


NOW_S, NOW_MS = 100.0, 1_700_000_000_300
"""The same moment on the worker's monotonic clock and on the server's clock."""


def settings_of(mode: RecoveryMode, type_field: str) -> WorkerSettings:
    return WorkerSettings(stream="orders", group="billing", recovery=mode, job_type_field=type_field)


def told_of(item: Delivery, mode: RecoveryMode, type_field: str = "", now_ms: int = NOW_MS) -> dict[str, object]:
    with going_by(lambda: NOW_S):
        data = DeliveryFacts(settings_of(mode, type_field), lambda: now_ms).of_settlement(item)
    head = (b"event", b"acked", b"group", b"billing", b"entry", item.raw_entry_id)
    words = [str(word).encode() for word in data]
    [event] = decode_entry(b"1-0", [*head, *words])
    return dict(event.data)


def settling(job: Job, verdict: Verdict = ACKED, run_ms: int = 7, started: float = NOW_S) -> Delivery:
    """Return a delivery with its verdict."""
    assert isinstance(job, Delivery)
    job.started, job.verdict, job.run_ms = started, verdict, run_ms
    return job


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


async def test_events_of_all_kinds_carry_the_type_of_their_job(server: RedisServer, client: Redis) -> None:
    async def fail_once(job: Job) -> None:
        if job.fields[b"kind"] == b"bad":
            raise Reject("no")
        if job.deliveries == 1:
            raise Retry("again", delay=0)

    worker = make_worker(server.url, fail_once, job_type_field="kind")
    for kind in ("good", "bad"):
        await add(client, {"kind": kind})
    async with running(worker):
        await wait_for_settled(worker, 3)
    events = await read_events(client, KEYS)
    assert [event.data.get("reason") for event in events if event.event == "nacked"] == [None], "no limit is reached"
    types = {(event.event, event.data.get("type")) for event in events}
    kinds = {"good": ("nacked", "acked"), "bad": ("dead_lettered",)}
    assert types == {(event, kind) for kind, events in kinds.items() for event in events}


def test_an_explicit_entry_id_or_a_later_delivery_does_not_tell_when_the_entry_could_be_read() -> None:
    """A later delivery keeps the ID, whose age contains the visibility timeout of the delivery before."""
    assert "ready_ms" not in facts_of(make_job(entry_id=b"5-1"))
    assert "ready_ms" not in facts_of(make_job(times=2))


def test_a_settlement_says_when_its_handler_began() -> None:
    """Also if the settlement comes late, and never before the delivery."""
    late = told_of(settling(make_job(), ACKED, 7, NOW_S - 20), RecoveryMode.REAPER, now_ms=1_700_000_030_000)
    assert late["begun_ms"] == 1_700_000_010_000
    assert told_of(settling(make_job(), ACKED, 7, NOW_S - 60), RecoveryMode.REAPER)["begun_ms"] == 1_700_000_000_250
    assert "begun_ms" not in told_of(settling(make_job(), ACKED, 0, -inf), RecoveryMode.REAPER)


@pytest.mark.parametrize("odd", ["a,b", "a\nb"])
@pytest.mark.parametrize("does", ["completes", "fails"])
async def test_an_odd_job_id_hides_no_event(server: RedisServer, client: Redis, odd: str, does: str) -> None:
    async def handle(_job: Job) -> None:
        if does == "fails":
            raise Reject("no")

    entries = [await add(client, {"n": n, "reaper.job": odd if n else "fine"}) for n in range(3)]
    worker = make_worker(server.url, handle)
    async with running(worker):
        await wait_for_settled(worker, 3)
    events = await read_events(client, KEYS)
    assert sorted((event.job, event.data["entry"]) for event in events) == sorted(
        zip(["fine", *entries[1:]], entries, strict=True)
    )
