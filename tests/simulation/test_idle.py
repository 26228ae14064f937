"""The requests of an idle system by the product's own intervals, counted on virtual time."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from reaper.replicas import Replica
from reaper.settings import HEARTBEAT, ReaperSettings
from reaper.sharing.registry import REGISTER
from reaper.sharing.tenure import Tenure
from tests.simulation import plays
from tests.simulation.actors.replica import Replica as Actor
from tests.simulation.entropy import drawn_from
from tests.simulation.places import GROUP, KEYS, STREAM, URL
from tests.simulation.plays import FIELD, Act
from tests.simulation.python_312 import as_in_312
from tests.simulation.story import Setting, Story
from tests.simulation.undisturbed import undisturbed
from tests.simulation.world import World
from tests.support.paced import PacedSettings
from workers.protocol.keys import namespace_keys
from workers.protocol.scripts import Script
from workers.runtime.clock import going_by

SETTLED_S, COUNTED_S = 120.0, 600.0
"""Two full scans and more, and so long is counted from then on."""
DEMANDED = 2.5
"""Requests a second: a registration, the ticks, and what a full scan asks."""
WATCHED_S = 70.0
HEARTBEAT_S = HEARTBEAT.total_seconds()
REGISTRATION_S = ReaperSettings(groups="orders/billing").registration.total_seconds()


class Idle:
    """A world without jobs, in which all processes have default settings."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked: Counter[tuple[str, bytes]] = Counter()
        self.ran: Counter[tuple[str, bytes]] = Counter()
        """By role and script."""
        self.looks: list[float] = []
        """When anybody asked for a page of the pending entries list."""
        self.begun_at = 0.0
        execute = world.server.execute

        def count(session: Any, words: list[bytes]) -> Any:
            role = world.witness.caller.partition("#")[0]
            self.asked[role, words[0].upper()] += 1
            if words[0].upper() == b"EVALSHA":
                self.ran[role, words[1]] += 1
            if words[0].upper() == b"XPENDING":
                self.looks.append(world.loop.now)
            return execute(session, words)

        world.server.execute = count  # type: ignore[method-assign]

    def a_second(self, role: str) -> float:
        """Return the requests per second of a process."""
        seconds = self.world.loop.now - self.begun_at
        return sum(number for (who, _), number in self.asked.items() if who == role) / seconds

    def count_from_now_on(self) -> None:
        self.begun_at = self.world.loop.now
        self.asked.clear()
        self.ran.clear()
        self.looks.clear()

    @property
    def holder(self) -> str:
        """The role of the replica that serves, or observes, the group."""
        roles = [one.role for one in self.world.actors.values() if isinstance(one, Actor) and one.reaper]
        [holder] = [role for role in roles if self.tenure(role)._watch]
        return holder

    def tenure(self, role: str) -> Tenure:
        reaper = self.replica(role).reaper
        assert reaper
        return reaper._tenures._tenures[KEYS.name]

    def replica(self, role: str) -> Actor:
        actor = self.world.actors[role]
        assert isinstance(actor, Actor)
        return actor

    def runs(self, role: str, script: Script) -> int:
        """Return how often a process has run a script."""
        return self.ran[role, script.digest.encode()]

    def deliver(self) -> bytes:
        """Let a consumer read a new job. Return its entry ID."""
        added: bytes = self.world.command("XADD", STREAM, "*", FIELD, plays.written((Act(plays.OK, 0.0),)))
        self.world.command("XREADGROUP", "GROUP", GROUP, "web-1", "STREAMS", STREAM, ">")
        return added

    def pending(self) -> int:
        """Return how much is pending."""
        return int(self.world.command("XPENDING", STREAM, GROUP)[0])

    def heartbeats(self) -> list[Replica]:
        """Return what is registered."""
        told = self.world.command("HGETALL", namespace_keys("reaper").replicas)
        return [Replica.from_json(heartbeat) for heartbeat in told[1::2]]

    def oldest_heartbeat_s(self) -> float:
        """Return for how long a replica has not registered."""
        now_ms = self.world.clock.now_us() / 1000
        return max(now_ms - one.at_ms for one in self.heartbeats()) / 1000


@contextmanager
def idle(*, workers: int = 0, replicas: int = 1, **changes: Any) -> Iterator[Idle]:
    """Make a world. ``changes`` are settings of the replicas."""
    story = Story(1, Setting(workers=workers, replicas=replicas), (), (), 60.0)
    with undisturbed(), drawn_from("idle"), _made(story, changes) as place:
        yield place


@contextmanager
def _made(story: Story, changes: dict[str, Any]) -> Iterator[Idle]:
    """Make the world, and drop all of it in the end, so that the garbage collector finds no rest."""
    world = World(story)
    world.command("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM")
    for actor in world.actors.values():
        if isinstance(actor, Actor):
            actor.settings = PacedSettings(**{"redis_url": URL, "groups": KEYS.name, "name": actor.role} | changes)
    place = Idle(world)
    with going_by(world.loop.time), as_in_312(world.loop):
        try:
            yield place
        finally:
            world.end()
            vars(place).clear()


def settle(place: Idle) -> None:
    """Let all begin, and count from then on."""

    async def wait() -> None:
        place.world.begin()
        await asyncio.sleep(SETTLED_S)
        place.count_from_now_on()

    place.world.run(wait)


def passes(place: Idle, seconds: float) -> None:
    place.world.run(lambda: asyncio.sleep(seconds))


@pytest.mark.parametrize(
    "changes",
    [{}, {"redelivery": "retry-stream"}, {"observe": True}],
    ids=["default settings", "policy retry-stream", "an observer"],
)
def test_the_holder_of_one_idle_group_asks_little(changes: dict[str, Any]) -> None:
    with idle(**changes) as place:
        settle(place)
        passes(place, COUNTED_S)
        assert 0 < place.a_second(place.holder) <= DEMANDED


def test_another_replica_and_a_worker_ask_little() -> None:
    with idle(workers=1, replicas=2) as place:
        settle(place)
        passes(place, COUNTED_S)
        [other] = {"reaper-1", "reaper-2"} - {place.holder}
        assert 0 < place.a_second(other) <= DEMANDED
        assert 0 < place.a_second("worker-1") <= DEMANDED


def test_a_delivery_after_a_pause_is_recovered_as_soon_as_any_other() -> None:
    with idle() as place:
        settle(place)
        place.deliver()
        passes(place, ReaperSettings().visibility_timeout.total_seconds() - 0.1)
        assert place.pending() == 1
        passes(place, 0.2)
        assert place.pending() == 0


# ---- registration


def heartbeats(place: Idle) -> float:
    """Let time pass. Return the longest time without a registration of the replicas, looking now and then."""
    ages = []
    for _ in range(round(WATCHED_S / 0.7)):
        passes(place, 0.7)
        ages.append(place.oldest_heartbeat_s())
    return max(ages)


def test_each_replica_registers_once_in_an_interval() -> None:
    with idle(replicas=2) as place:
        settle(place)
        assert heartbeats(place) < HEARTBEAT_S + REGISTRATION_S + 0.1
        for replica in ("reaper-1", "reaper-2"):
            assert place.runs(replica, REGISTER) == pytest.approx(WATCHED_S / REGISTRATION_S, rel=0.05)
