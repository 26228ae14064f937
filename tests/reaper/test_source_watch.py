"""The firing of a replica's timers, and its effects, under a virtual clock and a played server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from reaper.recovery.notes import GroupNotes
from reaper.recovery.source_watch import RETRY_MS, SourceWatch
from reaper.recovery.writer import GroupWriter
from reaper.settings import ReaperSettings
from reaper.tasks import Chores, Tasks
from reaper.wheel import Wheel
from tests.support.virtual_time import VIRTUAL_TIME
from workers.protocol.calls.declined import Declined
from workers.protocol.calls.group_moves import Authority
from workers.runtime.clock import monotonic_ms

pytestmark = pytest.mark.anyio

ENTRY = b"1-0"
VISIBILITY_S, MINUTE_S = 20, 60
WORDS_BEFORE_IDS = 3 + 9 + 5
"""EVALSHA, digest, number of keys; keys; arguments that are no entry IDs."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", VIRTUAL_TIME


async def answers() -> None:
    """Redis answers as long as it is up."""


@dataclass
class World:
    """A server that is asked to recover, and the watch that asks it. ``does`` is what each call meets first."""

    does: Callable[[], Awaitable[None]] = answers
    puts_off: int = 0
    """How many calls are told that it would be too much for one."""
    asked: list[tuple[float, list[bytes]]] = field(default_factory=list)
    """When, and for what."""
    declined: list[Declined] = field(default_factory=list)
    waits_until_ms: int = 0
    """Until when recovery has to wait, after a gap in the heartbeats."""

    def __post_init__(self) -> None:
        settings = ReaperSettings(groups="orders/billing", visibility_timeout=VISIBILITY_S)
        [group] = settings.watched
        self.notes = GroupNotes(group, lambda: None, set())
        context: Any = SimpleNamespace(recoveries=self, reads=self, settings=settings)
        self.wheel, self.tasks = Wheel(), Tasks()
        self.chores = Chores(self.wheel, self.tasks, group.keys.name, lambda: None)
        self.watch = SourceWatch(
            GroupWriter(context, group, Authority("alice", 7)),
            group.keys.stream,
            notes=self.notes,
            declined=self.declined.append,
            chores=self.chores,
            wake_moves=lambda: None,
        )

    async def execute_command(self, *words: Any) -> Any:
        """Recover whatever is asked for."""
        ids = list(words[WORDS_BEFORE_IDS:])
        self.asked.append((anyio.current_time(), ids))
        await self.does()
        if self.waits_until_ms > monotonic_ms():
            return [b"waits", self.waits_until_ms - monotonic_ms(), 5_000]
        if len(self.asked) <= self.puts_off:
            return [b"ok", ids[0], [], [], [], [], []]
        event = (b"event", b"recovered", b"consumer", b"w1", b"delivery", b"1", b"entry", b",".join(ids))
        columns = (b"idle_ms", b",".join([b"60000"] * len(ids)), b"new_entry", b",".join([b"9-0"] * len(ids)))
        return [b"ok", b"", [], [], [[*event, *columns]], [], []]

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[SourceWatch]:
        """Watch for as long as the block runs; one delivery is overdue."""
        async with anyio.create_task_group() as self.tasks.group:
            self.tasks.start(self.wheel.run)
            self.arm(ENTRY, monotonic_ms())
            yield self.watch
            self.tasks.group.cancel_scope.cancel()

    def arm(self, entry_id: bytes, due_ms: int) -> None:
        """Arm a timer as a scan does."""
        self.watch.timers.arm(entry_id, due_ms)
        self.watch.scanner.armed()


async def test_what_a_call_recovered_is_not_asked_for_again() -> None:
    world = World()
    async with world.watching() as watch:
        await anyio.sleep(MINUTE_S)
        assert ([ids for _, ids in world.asked], len(watch.timers), world.notes.report.recovered) == ([[ENTRY]], 0, 1)


async def test_what_was_too_much_for_one_call_is_asked_for_in_the_next() -> None:
    world = World(puts_off=1)
    async with world.watching() as watch:
        await anyio.sleep(MINUTE_S)
        assert ([ids for _, ids in world.asked], len(watch.timers), world.notes.report.recovered) == (
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


async def test_a_term_that_ends_in_the_middle_of_a_call_learns_what_the_call_did() -> None:
    async def takes_long() -> None:
        await anyio.sleep(5)

    world = World(takes_long)
    async with world.watching():
        await anyio.sleep(1)
        assert world.asked != []
    assert (world.notes.report.recovered, len(world.watch.timers)) == (1, 0)
    assert anyio.current_time() == pytest.approx(5, abs=0.1)


async def test_while_recovery_waits_each_timer_is_asked_for_once_and_again_when_it_is_over() -> None:
    world = World()
    world.waits_until_ms = monotonic_ms() + VISIBILITY_S * 1_000
    began = anyio.current_time()
    async with world.watching() as watch:
        world.arm(b"2-0", monotonic_ms() + 5_000)
        await anyio.sleep(VISIBILITY_S - 0.1)
        assert [ids for _, ids in world.asked] == [[ENTRY], [b"2-0"]]
        assert (len(watch.timers), world.notes.report.recovered) == (2, 0)
        await anyio.sleep(1)
        assert (len(watch.timers), world.notes.report.recovered) == (0, 2)
    assert world.asked[-1][0] == pytest.approx(began + VISIBILITY_S, abs=0.2)
    assert [declined.wait and declined.wait.gap_ms for declined in world.declined] == [5_000, 5_000]
