"""When a leader's timers fire, and what becomes of them: under a virtual clock, with a server that is played."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError
from workers.runtime.denials import RECOVERING, TOO_LATE_MS, Denials
from workers.runtime.grace import LONGEST_FIRST_WAIT_MS, OUTAGE_PART, Grace

from reaper.recovery.context import TermContext
from reaper.recovery.notes import GroupNotes
from reaper.recovery.rate import RateLimit
from reaper.recovery.source_watch import RETRY_MS, SourceWatch
from reaper.recovery.telemetry import GroupTelemetry
from reaper.recovery.writer import GroupWriter
from reaper.service import EVENTS
from reaper.settings import ReaperSettings
from tests.support.virtual_time import VIRTUAL_TIME
from workers.protocol.calls import Journal
from workers.protocol.calls.recovery import Outcome
from workers.protocol.calls.refusals import Refusal
from workers.protocol.calls.upkeep import Authority
from workers.runtime.callbacks import Callbacks
from workers.runtime.clock import monotonic_ms

pytestmark = pytest.mark.anyio

ENTRY = b"1-0"
VISIBILITY_S, MINUTE_S = 20, 60
WORDS_BEFORE_IDS = 3 + 10 + 14
"""EVALSHA, digest, number of keys; keys; arguments that are no entry IDs."""
NOT_AFTER = 3 + 10 + 9
"""Where a call says how late it may run: ARGV[10]."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", VIRTUAL_TIME


async def answers() -> None:
    """What Redis does as long as it is there: answer."""


@dataclass
class World:
    """A server that is asked to recover, and the watch that asks it. ``does`` is what each call meets first."""

    does: Callable[[], Awaitable[None]] = answers
    puts_off: int = 0
    """How many calls are told that it would be too much for one."""
    asked: list[tuple[float, list[bytes]]] = field(default_factory=list)
    """When, and for what."""
    refusals: list[Refusal] = field(default_factory=list)
    grace: Grace = field(default_factory=lambda: Grace(30_000, 7_000))
    denials: Denials = field(default_factory=Denials)
    of_replica: Denials = field(default_factory=Denials)
    """What the replica was refused besides recovery: its election, its registration."""
    not_after: list[int] = field(default_factory=list)
    """How late each call might have run."""

    def __post_init__(self) -> None:
        settings = ReaperSettings(groups="orders/billing", visibility_timeout=VISIBILITY_S)
        [group] = settings.watched
        self.notes = GroupNotes(group, Callbacks(EVENTS))
        context = SimpleNamespace(
            client=self,
            settings=settings,
            grace=self.grace,
            server_ms=monotonic_ms,
            elector=SimpleNamespace(denials=self.of_replica),
        )
        self.watch = SourceWatch(
            cast("TermContext", context),
            GroupWriter(cast("Any", self), group, Authority("reaper", 7, "alice", 0), Journal(1, 100)),
            group.keys.stream,
            notes=self.notes,
            telemetry=GroupTelemetry(group, 7, settings.trace_linkage),
            rate=RateLimit(0),
            grace_until=lambda: max(
                self.grace.until(VISIBILITY_S * 1_000),
                *(one.until(self.grace.longest_ms(VISIBILITY_S * 1_000)) for one in (self.denials, self.of_replica)),
            ),
            made=lambda: 0,
            refused=self.refusals.append,
            wake_suspects=lambda: None,
            denials=self.denials,
        )

    async def execute_command(self, *words: Any) -> Any:
        """Recover whatever is asked for."""
        ids = list(words[WORDS_BEFORE_IDS:])
        self.asked.append((anyio.current_time(), ids))
        self.not_after.append(int(str(words[NOT_AFTER]).split(",")[0]))
        is_late = self.not_after[-1] < monotonic_ms()
        await self.does()
        if is_late:
            return [b"late"]
        if len(self.asked) <= self.puts_off:
            return [b"ok", [], *([Outcome.PUT_OFF] for _ in ids)]
        return [b"ok", [b"w1", 1, [60_000] * len(ids)], *(b"2-0" for _ in ids)]

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[SourceWatch]:
        """Watch for as long as the block runs; one delivery is overdue."""
        self.watch.timers.arm(ENTRY, monotonic_ms())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.watch.run)
            yield self.watch
            tasks.cancel_scope.cancel()


async def test_what_a_call_recovered_is_not_asked_for_again() -> None:
    world = World()
    async with world.watching() as watch:
        await anyio.sleep(MINUTE_S)
        assert ([ids for _, ids in world.asked], len(watch.timers), world.notes.tally.recovered) == ([[ENTRY]], 0, 1)


async def test_what_was_too_much_for_one_call_is_asked_for_in_the_next() -> None:
    world = World(puts_off=1)
    async with world.watching() as watch:
        await anyio.sleep(MINUTE_S)
        assert ([ids for _, ids in world.asked], len(watch.timers), world.notes.tally.recovered) == (
            [[ENTRY]] * 2,
            0,
            1,
        )
        assert world.asked[1][0] == pytest.approx(world.asked[0][0], abs=0.1)


async def test_a_call_without_an_answer_loses_no_timer() -> None:
    stand: list[bool] = []

    async def loses_one_reply() -> None:
        stand.append(ENTRY in world.watch.timers)
        world.does = answers
        raise RedisConnectionError("connection lost")

    world = World(loses_one_reply)
    async with world.watching() as watch:
        await anyio.sleep(MINUTE_S)
        first, second = world.asked
        assert (stand, first[1], second[1], len(watch.timers)) == ([True], [ENTRY], [ENTRY], 0)
        assert second[0] - first[0] == pytest.approx(RETRY_MS / 1000, abs=0.1)


async def test_within_a_grace_nothing_is_asked_for_whatever_is_overdue() -> None:
    world = World()
    world.grace.server_uptime(monotonic_ms(), 0)  # it has just started: its workers are on their way back
    async with world.watching():
        await anyio.sleep(VISIBILITY_S - 0.1)
        before = list(world.asked)
        await anyio.sleep(0.2)
        assert (before, [ids for _, ids in world.asked]) == ([], [[ENTRY]])


async def test_a_grace_that_begins_while_a_timer_is_waited_for_counts() -> None:
    world = World()
    async with world.watching() as watch:
        await anyio.sleep(1)
        watch.timers.arm(b"2-0", monotonic_ms() + 10_000)
        await anyio.sleep(9)
        world.grace.server_uptime(monotonic_ms(), 0)
        await anyio.sleep(VISIBILITY_S - 0.1)
        before = len(world.asked)
        await anyio.sleep(6)
        assert (before, [ids for _, ids in world.asked]) == (1, [[ENTRY], [b"2-0"]])


async def test_a_term_that_ends_in_the_middle_of_a_call_learns_what_the_call_did() -> None:
    async def takes_long() -> None:
        await anyio.sleep(5)

    world = World(takes_long)
    async with world.watching():
        await anyio.sleep(1)
        assert world.asked != []
    assert (world.notes.tally.recovered, len(world.watch.timers)) == (1, 0)
    assert anyio.current_time() == pytest.approx(5, abs=0.1)


async def test_what_was_not_allowed_asks_first_for_nothing_and_then_lets_live_workers_come_first() -> None:
    async def denies() -> None:
        if anyio.current_time() < MINUTE_S:
            raise NoPermissionError("this user has no permissions to run the 'evalsha' command")

    world = World(denies)
    async with world.watching() as watch:
        await anyio.sleep(MINUTE_S + VISIBILITY_S - 0.1)
        before = (len(watch.timers), world.notes.tally.recovered)
        assert len(world.asked) > 1
        assert world.not_after[0] > 0
        assert set(world.not_after[1:]) == {TOO_LATE_MS}
        allowed_at = world.asked[-1][0]
        assert allowed_at >= MINUTE_S
        await anyio.sleep(MINUTE_S)
        assert (before, len(watch.timers), world.notes.tally.recovered) == ((1, 0), 0, 1)
        assert world.asked[-1][0] == pytest.approx(allowed_at + VISIBILITY_S, abs=0.1)
        assert world.refusals == [], "that it came too late is what it was to say"


async def test_what_the_replica_was_refused_besides_lets_live_workers_come_first_too() -> None:
    """Nothing was due while it was refused: no call of ours that recovers has met it."""
    world = World()
    world.of_replica.denied("registration")
    await anyio.sleep(1)  # the clock is past what is too late
    async with world.watching() as watch:
        await anyio.sleep(VISIBILITY_S - 0.1)
        assert (set(world.not_after), len(watch.timers), world.notes.tally.recovered) == ({TOO_LATE_MS}, 1, 0)
        assert not world.of_replica.is_open


async def test_a_call_that_waited_for_room_while_a_wait_began_is_not_made() -> None:
    """Several calls may be under way: each of them was due, and the answer to one says that the others have to wait."""
    world = World()
    world.denials.denied(RECOVERING)

    async def answers_late() -> None:
        await anyio.sleep(1)

    world.does = answers_late
    await anyio.sleep(1)
    async with world.watching() as watch:
        for n in range(2, 6):
            watch.timers.arm(b"%d-0" % n, monotonic_ms())
            watch._wake_if_earlier()
            await anyio.sleep(0.2)
        await anyio.sleep(VISIBILITY_S - 3)
        assert (set(world.not_after), world.notes.tally.recovered) == ({TOO_LATE_MS}, 0)


async def test_a_call_that_is_made_out_of_contact_must_not_run_once_the_outage_would_count() -> None:
    """It may wait for its connection, and be the first that is heard by a server that was away."""
    counts_ms = VISIBILITY_S * 1_000 // OUTAGE_PART
    world = World()
    async with world.watching() as watch:
        world.grace.contact(monotonic_ms(), monotonic_ms())
        await anyio.sleep(counts_ms / 1_000 - 0.5)
        world.grace.failed(monotonic_ms())
        watch.timers.arm(b"2-0", monotonic_ms())
        watch._wake_if_earlier()
        await anyio.sleep(0.1)
        assert [ids for _, ids in world.asked] == [[ENTRY], [b"2-0"]]
        assert world.not_after[-1] - monotonic_ms() == pytest.approx(400, abs=5)


async def test_a_replica_that_is_new_recovers_after_live_workers_came() -> None:
    world = World()
    world.grace.contact(monotonic_ms(), monotonic_ms())
    began = anyio.current_time()
    async with world.watching():
        await anyio.sleep(MINUTE_S)
    [(at, _)] = world.asked
    assert at == pytest.approx(began + LONGEST_FIRST_WAIT_MS / 1_000, abs=0.05)
