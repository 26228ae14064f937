"""Foreign workers on virtual time. Readers are as frameworks write them, and a replica watches and reports."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from reaper.drill.promises import Execution
from reaper.replicas import GroupReport
from reaper.settings import GroupSettings
from tests.simulation.actors.actor import Actor
from tests.simulation.actors.replica import Replica
from tests.simulation.entropy import drawn_from
from tests.simulation.loop import Process
from tests.simulation.patience import patient
from tests.simulation.places import GROUP, KEYS, STREAM, URL
from tests.simulation.plays import FIELD, OK, Act
from tests.simulation.python_312 import as_in_312
from tests.simulation.story import Setting, Story
from tests.simulation.undisturbed import undisturbed
from tests.simulation.world import World
from tests.support.paced import PacedSettings
from workers.protocol.connection import commands_client, reader_client
from workers.protocol.messages import pair_up, read_metadata, text
from workers.runtime.clock import going_by

VISIBILITY_S = 30.0
REPLICA = "reaper-1"


@dataclass
class Habits:
    """How a reader goes about it. Durations are seconds."""

    count: int = 10
    """Jobs that it reads at a time, and has in memory then."""
    seconds: Callable[[bytes], float] = lambda _: 1.0
    """How long a job takes, by its payload."""
    at_once: int = 1
    """Jobs that it works on at a time, of those that it has read."""
    reads_on: bool = False
    """It reads again as soon as it may work on another one; else when it is done with what it has read."""
    history: int = 0
    """So often it reads what it holds already, before it begins."""
    history_count: int = 1_000


class Reader(Actor):
    """A consumer of a stable name that reads some jobs, works, acknowledges each, and reads the next ones."""

    def __init__(self, world: World, role: str, habits: Habits) -> None:
        super().__init__(world, role)
        self.habits = habits
        self.done: list[tuple[float, bytes]] = []
        """When which entry was acknowledged."""

    async def run(self, process: Process) -> None:
        client, settling = reader_client(URL), commands_client(URL)
        entries: Sequence[Any] = ()
        for _ in range(self.habits.history):
            entries = await self._read(client, process, "0", self.habits.history_count)
        room = asyncio.Semaphore(self.habits.at_once)
        async with asyncio.TaskGroup() as tasks:
            while True:
                work = [tasks.create_task(self._work(settling, process, room, *entry)) for entry in entries if entry[1]]
                if self.habits.reads_on:
                    await room.acquire()
                    room.release()
                else:
                    await asyncio.gather(*work)
                entries = await self._read(client, process, ">", self.habits.count)

    async def _read(self, client: Redis, process: Process, start: str, count: int) -> Sequence[Any]:
        reply = await client.execute_command(
            "XREADGROUP", "GROUP", GROUP, self.role, "COUNT", count, "BLOCK", 2_000, "STREAMS", STREAM, start
        )
        found = [entry for _, entries in reply or () for entry in entries]
        for entry_id, flat in found:  # all that it holds ends with it
            self.world.ledger.start(_execution(entry_id, flat), process.name, (Act(OK, 0),))
        return found

    async def _work(
        self, client: Redis, process: Process, room: asyncio.Semaphore, entry_id: bytes, flat: Sequence[bytes]
    ) -> None:
        async with room:
            execution = _execution(entry_id, flat)
            await asyncio.sleep(self.habits.seconds(flat[1]))
            self.world.ledger.complete(execution)
            self.world.ledger.leave(execution, process.name)
            await client.execute_command("XACK", STREAM, GROUP, entry_id)
            self.done.append((self.world.loop.now, entry_id))


def _execution(entry_id: bytes, flat: Sequence[bytes]) -> Execution:
    metadata = read_metadata(entry_id, pair_up(flat))
    return Execution(text(metadata.job_id), metadata.generation)


@dataclass
class Place:
    """A stream with a group, one replica, and readers that come and go."""

    world: World
    readers: dict[str, Reader] = field(default_factory=dict)

    def add(self, *payloads: bytes) -> list[bytes]:
        """Enqueue jobs. Return entry IDs."""
        return [self.world.command("XADD", STREAM, "*", FIELD, payload) for payload in payloads]

    def start(self, name: str, habits: Habits | None = None) -> Reader:
        """Start a reader, or start it again."""
        if name not in self.readers:
            self.readers[name] = self.world.actors[name] = Reader(self.world, name, habits or Habits())
        self.world.launch(name)
        return self.readers[name]

    def kill(self, name: str, again_after_s: float) -> None:
        """End a reader as ``kill -9`` does, and start it again later."""
        self.world.kill(name, again_after_s=again_after_s)

    async def until(self, second: float) -> None:
        """Wait for an instant of the story."""
        await asyncio.sleep(max(0.0, second - self.world.loop.now))

    @property
    def replica(self) -> Replica:
        """The replica that watches."""
        actor = self.world.actors[REPLICA]
        assert isinstance(actor, Replica)
        return actor

    @property
    def report(self) -> GroupReport:
        """The replica's knowledge of the group."""
        assert self.replica.reaper
        return self.replica.reaper.reports()[KEYS.name]

    def pending(self) -> list[tuple[str, str, int]]:
        """Return the pending entries as entry ID, consumer, and Redis's count."""
        rows = self.world.command("XPENDING", STREAM, GROUP, "-", "+", 1_000)
        return [(text(entry_id), text(consumer), count) for entry_id, consumer, _, count in rows]

    def left(self) -> int:
        """Return the number of unread jobs."""
        ((_, _, _, _, _, _, _, last_id, *_),) = self.world.command("XINFO", "GROUPS", STREAM)
        return len(self.world.command("XRANGE", STREAM, b"(" + last_id, "+"))

    async def until_all_is_done(self, longest_s: float) -> None:
        """Wait until no job is ready or pending, for so long."""
        ends_at = self.world.loop.now + longest_s
        while (self.pending() or self.left()) and self.world.loop.now < ends_at:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(5)

    def dead(self) -> int:
        """Return how many dead letters there are."""
        return int(self.world.command("XLEN", KEYS.dead))


def play(
    program: Callable[[Place], Awaitable[Any]], *, seed: int = 1, group: Any = None, ours: int = 0, **changes: Any
) -> Any:
    """Run a program in that place. ``group`` and ``changes`` are settings of the group and of the replica.

    ``ours`` is the number of workers of ours there.
    """
    setting = Setting(workers=ours, replicas=1, visibility_s=VISIBILITY_S)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with undisturbed():
            return _outcome(Story(seed, setting, (), ()), program, group or {}, changes)
    finally:
        logging.disable(disabled)


def _outcome(
    story: Story, program: Callable[[Place], Awaitable[Any]], group: dict[str, Any], changes: dict[str, Any]
) -> Any:
    with drawn_from(str(story.seed)), patient(story.setting):
        world = World(story)
        try:
            with going_by(world.loop.time), as_in_312(world.loop):
                result = world.run(lambda: _played(world, program, group, changes))
        finally:
            world.end()
        assert not world.findings.sentences, world.findings.sentences
        return result


async def _played(
    world: World, program: Callable[[Place], Awaitable[Any]], group: dict[str, Any], changes: dict[str, Any]
) -> Any:
    world.command("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM")
    replica = world.actors[REPLICA]
    assert isinstance(replica, Replica)
    values = replica.settings.model_dump(exclude_unset=True) | changes
    values["groups"] = (GroupSettings(stream=STREAM, group=GROUP, **group),)
    replica.settings = PacedSettings(**values)
    world.limits.append(replica.settings.max_deliveries)
    for role in world.actors:
        world.launch(role)
    place = Place(world)
    await asyncio.sleep(1)
    return await program(place)
