import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_events
from tests.support.servers import RedisServer
from tests.workers.scene import KEYS, add, make_job, make_worker, running, wait_for_settled
from workers import Job
from workers.loop.execution import ACKED, Reject, Retry
from workers.loop.facts import DeliveryFacts
from workers.protocol.calls.settlement import ACKS_IN_AN_ENTRY, ENTRY_BYTES, Ended, Outcome, Verdict, add_verdicts
from workers.protocol.events import decode_entry
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
    [event] = decode_entry(b"1-0", [b"event", b"acked", b"job", b"x", b"data", data])
    return dict(event.data)


def test_the_facts_of_a_settlement_are_json_with_all_names_escaped() -> None:
    job = make_job(entry_id=b"1700000000000-1")

    assert facts_of(job, Verdict(Outcome.NACK, "", 'a "quote"\n')) == {
        "v": 1,
        "group": 'bil"ling',
        "consumer": "w.é",
        "mode": "reaper",
        "entry": "1700000000000-1",
        "delivery": 1,
        "generation": 0,
        "enqueued_ms": 1_700_000_000_000,
        "ready_ms": 1_700_000_000_000,
        "delivered_ms": 1_700_000_000_250,
        "begun_ms": 1_700_000_000_300,
        "run_ms": 7,
        "error": 'a "quote"\n',
    }


class Settling(NamedTuple):
    """A delivery with its verdict."""

    job: Any
    verdict: Verdict
    run_ms: int
    started: float = NOW_S
    has_lost_payload: bool = False


@pytest.mark.parametrize("type_field", ["", "type"])
def test_many_acknowledged_jobs_are_told_as_each_would_be_by_itself(
    type_field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [
        make_job(entry_id=b"1700000000000-1"),
        make_job(b"type", b"mail", b"reaper.job", b"\xff", b"reaper.deliveries", b"1", entry_id=b"1700000000200-0"),
        make_job(b"type", b"m\xc3\xa9l", b"reaper.first_ms", b"1600000000000", entry_id=b"1700000000200-1"),
        make_job(b"type", b"", b"reaper.generation", b"2", entry_id=b"5-5"),
    ]
    facts = DeliveryFacts('bil"ling', "w.é", RecoveryMode.REAPER, type_field, lambda: NOW_MS)
    monkeypatch.setattr("workers.loop.facts.monotonic", lambda: NOW_S)

    for told in (jobs, jobs[:1] * 3, jobs[:2], jobs[3:] * 2):
        items = [Settling(job, ACKED, number, NOW_S + number) for number, job in enumerate(told)]
        many = facts.of_acks(items)
        singly = [
            event
            for item in items
            for event in decode_entry(
                b"1-0", [b"event", b"acked", b"job", item.job.raw_id, b"data", facts.of_settlement(item)]
            )
        ]
        found = decode_entry(b"1-0", [b"event", b"acked", b"data", many])
        assert [replace(event, data={**event.data, "v": 1}) for event in found] == singly


@dataclass
class _Settled:
    raw_entry_id: bytes
    raw_id: bytes
    times_delivered: int


class _Told:
    """Facts that say which jobs they are of, at some length."""

    def __init__(self, length: int = 0) -> None:
        self._more = "." * length

    def of_settlement(self, item: Ended[_Settled]) -> bytes:
        return f"{item.verdict.outcome} {item.job.raw_id.decode()} {item.run_ms}".encode()

    def of_acks(self, items: Sequence[Ended[_Settled]]) -> bytes:
        return ",".join(item.job.raw_id.decode() + self._more for item in items).encode()


NACKED = Verdict(Outcome.NACK, "failed")


def words_of(*verdicts: Verdict, facts: _Told | None, times: Sequence[int] = ()) -> list[object]:
    counts = (*times, *[1] * (len(verdicts) - len(times)))
    words: list[Any] = []
    items = [
        Settling(_Settled(b"%d-0" % at, b"j%d" % at, count), verdict, at)
        for at, (verdict, count) in enumerate(zip(verdicts, counts, strict=True))
    ]
    add_verdicts(words, items, facts, ",9")
    return words


def test_acks_beside_each_other_are_written_as_one_and_all_else_by_itself() -> None:
    assert words_of(ACKED, ACKED, NACKED, ACKED, facts=_Told()) == [
        "acks", "1,9", 2, b"j0,j1", b"0-0", b"1-0",
        "nack", "1,9", 1, b"2-0", b"j2", b"nack j2 2", "failed", "", "", "",
        "ack", "1,9", 1, b"3-0", b"j3", b"ack j3 3",
    ]  # fmt: skip


def test_acks_of_other_delivery_counts_are_not_one() -> None:
    assert words_of(ACKED, ACKED, ACKED, facts=_Told(), times=(2, 2)) == [
        "acks", "2,9", 2, b"j0,j1", b"0-0", b"1-0",
        "ack", "1,9", 1, b"2-0", b"j2", b"ack j2 2",
    ]  # fmt: skip


def test_acks_that_are_not_journalled_are_one_however_many() -> None:
    words = words_of(*[ACKED] * 500, facts=None)
    assert words[:4] == ["acks", "1,9", 500, b""]
    assert words[4:] == [b"%d-0" % at for at in range(500)]


@pytest.mark.parametrize("length", [0, 100, ENTRY_BYTES])
def test_an_entry_that_tells_of_many_acks_is_bounded_in_rows_and_bytes(length: int) -> None:
    words = words_of(*[ACKED] * 100, facts=_Told(length))
    ids, sizes = [], []
    while words:
        verb, _, number, told, *words = words
        assert verb == "acks"
        assert isinstance(number, int)
        assert isinstance(told, bytes)
        assert len(told.split(b",")) == number
        ids += words[:number]
        sizes.append((number, len(told)))
        del words[:number]
    assert ids == [b"%d-0" % at for at in range(100)]
    assert all(number <= ACKS_IN_AN_ENTRY and (size <= ENTRY_BYTES or number == 1) for number, size in sizes)


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
    told = [
        json.loads(facts.of_settlement(Settling(make_job(b"type", b"%d" % number), ACKED, 7)))["type"]
        for number in range(3_000)
    ]
    assert told == [str(number) for number in range(3_000)]
    assert len(facts._types) <= 1_000


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
    types = {(event.event, event.data.get("type")) for event in await read_events(client, KEYS)}
    kinds = {"good": ("nacked", "acked"), "bad": ("dead_lettered",)}
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
