"""The parts of a worker that depend on time, alone, on a clock that the test sets."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from redis.exceptions import ResponseError

from tests.support.patience import PATIENCE_S
from tests.workers.scene import make_job
from workers import Job
from workers.backoff import Backoff
from workers.loop.context import SettlementTurn
from workers.loop.dispatch import HandlerCall, HandlerCalls
from workers.loop.execution import HANDED_BACK
from workers.loop.heartbeat import BEATS, Heartbeat
from workers.loop.in_flight import Delivery, Interruption, Source
from workers.loop.isolation import Isolation
from workers.loop.membership import Membership
from workers.loop.runner import Runner
from workers.protocol.calls.moves import HeartbeatAnswer, HeartbeatEntry, Outcome, Verdict
from workers.runtime.clock import going_by, monotonic
from workers.runtime.redis_failures import RedisFailures

pytestmark = pytest.mark.anyio

VISIBILITY_S = 60.0


class Clock:
    """A monotonic clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with going_by(clock):
        yield clock


class Redis:
    """Extends deliveries. It answers after ``takes_s``, with success or with ``answer``."""

    def __init__(self, clock: Clock, takes_s: float = 0.0, answer: HeartbeatAnswer = HeartbeatAnswer.EXTENDED) -> None:
        self._clock = clock
        self._takes_s = takes_s
        self._answer = answer
        self.asked = 0
        self.extended: list[tuple[float, list[bytes]]] = []
        """When which entries were extended."""

    async def extend(self, _client: Any, _source: str, entries: Sequence[HeartbeatEntry]) -> list[HeartbeatAnswer]:
        self.asked += 1
        self.extended.append((self._clock.now, [one.entry_id for one in entries]))
        self._clock.now += self._takes_s
        return [self._answer] * len(entries)


class Settled:
    """Notes what is to be settled."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []

    def add(self, _held: Delivery, verdict: Verdict, _began: float, _now: float) -> bool:
        self.verdicts.append(verdict)
        return False


class Silent:
    """Receives reports."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_facts, **_more: None


def hold(number: int = 1, source: Source | None = None) -> Delivery:
    """Return a delivery in hand, proved now."""
    source = source or Source("orders", "orders")
    held = make_job(entry_id=b"1700000000000-%d" % number, source=source)
    held.proven = monotonic()
    source.hold([held])
    return held


def context_of(held: Delivery, redis: Redis) -> Any:
    membership = Silent()
    membership.main = held.source  # type: ignore[attr-defined]
    membership.both = [held.source]  # type: ignore[attr-defined]
    membership.visibility_s = VISIBILITY_S  # type: ignore[attr-defined]
    membership.timeout_changed = -inf  # type: ignore[attr-defined]
    membership.is_recent = lambda proven: Membership.is_recent(membership, proven)  # type: ignore[arg-type, attr-defined]
    reporter = Silent()
    reporter.troubles = RedisFailures()  # type: ignore[attr-defined]
    settings = SimpleNamespace(backoff=Backoff(1_000, 60_000, 86_400_000), concurrency=1)
    return SimpleNamespace(
        settings=settings,
        consumer="us",
        commands=None,
        membership=membership,
        kept=None,
        moves=redis,
        turn=SettlementTurn(),
        reporter=reporter,
        telemetry=SimpleNamespace(traces=False, lost_ended=lambda _job: None),
    )


def runner_of(context: Any, handle: Callable[[Job], Awaitable[None]], settled: Any) -> Runner:
    calls = HandlerCalls("", {}, HandlerCall(handle, 1))
    return Runner(context, calls, settled, Heartbeat(context), Isolation((), lambda: VISIBILITY_S), lambda: False)


async def test_a_delivery_is_proved_as_of_the_question_and_not_of_the_reply(clock: Clock) -> None:
    redis = Redis(clock, takes_s=4.0)
    held = hold()
    Heartbeat(context_of(held, redis))
    clock.now += 10.0
    asked_at = monotonic()
    assert await held.extend()
    assert (held.proven, monotonic()) == (asked_at, asked_at + 4.0)


async def perform(held: Delivery, redis: Redis) -> tuple[int, int, int]:
    """Take a delivery through all steps. Return the number of calls to Redis, and of started and settled jobs."""
    started: list[str] = []

    async def handle(job: Job) -> None:
        started.append(job.id)

    settled, context = Settled(), context_of(held, redis)
    runner = runner_of(context, handle, settled)
    await runner.perform(held, None, monotonic())
    return redis.asked, len(started), len(settled.verdicts)


@pytest.mark.parametrize("late_s", [-1.0, 1.0])
async def test_a_delivery_unproven_for_half_a_timeout_is_checked_before_it_starts(clock: Clock, late_s: float) -> None:
    """After a long blocking read, its deliveries are proven as lately as those that are extended beside it
    (5304614)."""
    redis = Redis(clock, answer=HeartbeatAnswer.REJECTED)
    held = hold()
    clock.now += VISIBILITY_S / 2 + late_s
    assert await perform(held, redis) == ((0, 1, 1) if late_s < 0 else (1, 0, 0))


class NoGroup(Redis):
    """A Redis that lacks the stream a few times, and then extends."""

    async def extend(self, client: Any, source: str, entries: Sequence[HeartbeatEntry]) -> list[HeartbeatAnswer]:
        if self.asked < 3:
            self.asked += 1
            raise ResponseError("NOGROUP No such key 'orders' or consumer group 'billing'")
        return await super().extend(client, source, entries)


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_delivery_of_a_deleted_stream_is_checked_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    """Another one is made anew, and it is asked until there is an answer."""
    monkeypatch.setattr("workers.loop.heartbeat.pause_s", lambda _failures: 0.0)
    redis = NoGroup(clock)
    held = hold()
    context = context_of(held, redis)
    context.membership.is_gone = lambda source, _error: source is held.source and is_gone
    assert await Heartbeat(context).still_owns(held) is not is_gone
    assert redis.asked == (1 if is_gone else 4)
    assert (held.interruption is Interruption.LOST) is is_gone


@pytest.mark.parametrize("says", ["nothing", "that it fails"])
async def test_nothing_is_settled_of_a_job_that_was_taken_from_its_handler(clock: Clock, says: str) -> None:
    running = asyncio.Event()

    async def handle(_job: Job) -> None:
        running.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if says == "nothing":
                raise
            raise ValueError("interrupted") from None

    redis, settled = Redis(clock), Settled()
    held = hold()
    context = context_of(held, redis)

    async def perform() -> None:
        task = asyncio.current_task()
        runner = runner_of(context, handle, settled)
        await runner.perform(held, task, monotonic())

    task = asyncio.get_running_loop().create_task(perform())
    await running.wait()
    assert held.lose()
    await task
    assert held.interruption is Interruption.LOST
    assert settled.verdicts == []


async def test_a_job_that_ends_at_the_drain_deadline_before_its_cancellation_is_acknowledged(clock: Clock) -> None:
    async def handle(_job: Job) -> None:
        runner.hands_back = True

    held, settled = hold(), Settled()
    runner = runner_of(context_of(held, Redis(clock)), handle, settled)
    await runner.perform(held, asyncio.current_task(), monotonic())
    assert [verdict.outcome for verdict in settled.verdicts] == [Outcome.ACK]


async def test_a_job_is_stopped_at_its_timeout_if_its_timer_comes_early(clock: Clock) -> None:
    """uvloop rounds times to milliseconds."""

    async def handle(_job: Job) -> None:
        await asyncio.get_running_loop().create_future()

    held, settled = hold(), Settled()
    held.timeout_s = 1.0
    clock.now = asyncio.get_running_loop().time() - held.timeout_s  # the timer runs at once, and the clock stands still
    runner = runner_of(context_of(held, Redis(clock)), handle, settled)

    async def perform() -> None:
        await runner.perform(held, asyncio.current_task(), monotonic())

    with anyio.fail_after(PATIENCE_S):
        await asyncio.get_running_loop().create_task(perform())
    assert [verdict.reason for verdict in settled.verdicts] == ["timeout"]


class EnoughError(Exception):
    """The test has seen enough."""


async def beat(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, heartbeat: Heartbeat, *, answers: bool = True, for_s: float
) -> None:
    """Let it beat for so long. The event loop ``answers``, or hangs."""
    end = clock.now + for_s

    async def sleep(seconds: float) -> None:
        clock.now += seconds
        if clock.now >= end:
            raise EnoughError

    def call_in_loop(function: Any, *arguments: Any) -> None:
        if answers:
            function(*arguments)

    monkeypatch.setattr("workers.loop.heartbeat.anyio.sleep", sleep)
    loop: Any = SimpleNamespace(call_soon_threadsafe=call_in_loop, is_closed=lambda: False)
    heartbeat._loop = loop
    connection: Any = None
    with pytest.raises(EnoughError):
        await heartbeat.beat_on(connection)


async def beats_of(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, held: Delivery, *, answers: bool, counts_all: bool = False
) -> list[float]:
    """Let it beat for a visibility timeout. Return when it extended, in visibility timeouts."""
    redis, began = Redis(clock), clock.now
    await beat(monkeypatch, clock, Heartbeat(context_of(held, redis)), answers=answers, for_s=VISIBILITY_S)
    return [(at - began) / VISIBILITY_S for at, entries in redis.extended if entries or counts_all]


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("is_overdue", [True, False])
async def test_where_the_event_loop_hangs_behind_a_job_that_is_overdue_nothing_is_extended(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, answers: bool, is_overdue: bool
) -> None:
    held = hold()
    hold(2, held.source)
    held.timeout_s = 5.0 if is_overdue else 10 * VISIBILITY_S
    held.begin(clock.now, None)
    extended = await beats_of(monkeypatch, clock, held, answers=answers)
    assert extended == ([1 / 4, 2 / 4, 3 / 4] if answers or not is_overdue else [])


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("runs", [None, 5.0, 10 * VISIBILITY_S], ids=["nothing", "what is overdue", "a job"])
async def test_four_heartbeats_are_sent_in_a_visibility_timeout_whatever_is_in_hand(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, answers: bool, runs: float | None
) -> None:
    """Each of them notes the beat of the group. An idle worker asks for no more than that."""
    held = hold()
    if runs is None:
        held.source.deliveries.clear()
    else:
        held.timeout_s = runs
        held.begin(clock.now, None)
    sent = await beats_of(monkeypatch, clock, held, answers=answers, counts_all=True)
    assert sent == [0, 1 / 4, 2 / 4, 3 / 4]


@pytest.mark.parametrize("answers", [True, False])
async def test_what_has_ended_is_extended_while_another_handler_keeps_its_verdict_from_being_sent(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """While the event loop runs, the result is on its way, so no proof is needed (seed 5002666)."""
    held = hold()
    held.begin(clock.now, None)
    held.end(Verdict(Outcome.ACK), 0)
    extended = await beats_of(monkeypatch, clock, held, answers=answers)
    assert extended == ([] if answers else [1 / 4, 2 / 4, 3 / 4])


@pytest.mark.parametrize(
    ("what", "is_extended"),
    [
        ("waits for a slot", True),
        ("runs", True),
        ("runs for longer than it may", False),
        ("was cancelled for that and goes on", False),
        ("was lost and goes on", False),
        ("has a verdict", False),
    ],
)
async def test_deliveries_with_a_slot_and_queued_ones_are_extended(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, what: str, is_extended: bool
) -> None:
    """A stubborn handler keeps its job for its timeout and a visibility timeout, not for ever."""
    redis = Redis(clock)
    held = hold()
    beside = hold(2, held.source)
    held.timeout_s = VISIBILITY_S / BEATS / 2 if "longer" in what else inf
    if what != "waits for a slot":
        held.begin(clock.now, None)
    if "goes on" in what:
        held.interrupt(Interruption.TIMEOUT if "cancelled" in what else Interruption.LOST)
    if "verdict" in what:
        held.end(HANDED_BACK, 0)
    await beat(monkeypatch, clock, Heartbeat(context_of(held, redis)), for_s=VISIBILITY_S * 0.3)
    (_, extended) = redis.extended[-1]
    expected = [held, beside] if is_extended else [beside]
    assert extended == [one.raw_entry_id for one in expected]


async def test_a_lowered_timeout_brings_another_heartbeat_at_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread may begin a beat after the time of the change, and before it can read it."""
    held = hold()
    beside = hold(2, held.source)

    class Lowering(Redis):
        async def extend(self, client: Any, source: str, entries: Sequence[HeartbeatEntry]) -> list[HeartbeatAnswer]:
            if len(self.extended) == 1:
                beside.proven = clock.now - 0.2
                context.membership.timeout_changed = clock.now - 0.1
            return await super().extend(client, source, entries)

    redis = Lowering(clock)
    beside.proven = clock.now + VISIBILITY_S / 4
    context = context_of(held, redis)
    await beat(monkeypatch, clock, Heartbeat(context), for_s=VISIBILITY_S * 0.3)
    assert [entries for _, entries in redis.extended[1:]] == [[held.raw_entry_id], [beside.raw_entry_id]]
    assert redis.extended[1][0] == redis.extended[2][0], "it beats again at once"
