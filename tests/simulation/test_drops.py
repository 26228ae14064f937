"""Deliveries that third parties delete are asked for, unless no process can know of them. Here we drop it ourselves."""

import asyncio

import pytest

from tests.simulation.actors.our_worker import OurWorker
from tests.simulation.conftest import Make
from tests.simulation.drops import PROVEN_LATELY
from tests.simulation.places import GROUP, KEYS
from tests.simulation.plays import Act
from tests.simulation.story import NewJob, Setting, Story
from tests.simulation.world import World

READER = "reader"

VISIBILITY_S = 60.0
JOB = "job-001"
RUNS = Story(
    1,
    Setting(workers=1, replicas=1, visibility_s=VISIBILITY_S, lease_s=20.0),
    (NewJob(5.0, 1, (Act("ok", 50.0),)),),
    (),
    60.0,
)


async def running(world: World) -> OurWorker:
    """Wait until the job runs, under a word that stands; return who runs it."""
    world.begin()
    while not world.ledger.starts:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    worker = world.actors["worker-1"]
    assert isinstance(worker, OurWorker)
    return worker


def drop(world: World, worker: OurWorker) -> None:
    """Delete its consumer."""
    world.drops.note(KEYS.stream, worker.consumer)
    world.command("XGROUP", "DELCONSUMER", KEYS.stream, GROUP, worker.consumer)
    assert JOB in world.ledger.dropped


def test_what_a_worker_has_proven_lately_is_asked_for_and_it_holds_it_again(make: Make) -> None:
    world = make(RUNS)

    async def play() -> None:
        worker = await running(world)
        drop(world, worker)
        await asyncio.sleep(VISIBILITY_S * PROVEN_LATELY + 1)
        assert len(world.command("XPENDING", KEYS.stream, GROUP, "-", "+", 10)) == 1

    world.run(play)
    assert not world.ledger.lost


def test_what_a_worker_lets_go_of_though_it_has_proven_it_lately_is_asked_for(make: Make) -> None:
    world = make(RUNS)

    async def play() -> None:
        worker = await running(world)
        drop(world, worker)
        [held] = worker._held()
        held.lose()
        world.drops.rejected("worker-1#1", JOB)
        await asyncio.sleep(VISIBILITY_S)

    world.run(play)
    assert not world.ledger.lost


def test_what_a_worker_has_never_had_is_nobodys_to_know(make: Make) -> None:
    world = make(RUNS)

    async def play() -> None:
        worker = await running(world)
        [held] = worker._held()
        held.source.forget([held])  # as if its reply had been lost
        drop(world, worker)

    world.run(play)
    assert world.ledger.lost == {JOB}


def test_what_a_worker_cannot_prove_for_too_long_is_nobodys_to_know_and_not_before(make: Make) -> None:
    world = make(RUNS)

    async def play() -> None:
        worker = await running(world)
        world.pause("worker-1", 2 * VISIBILITY_S)
        drop(world, worker)
        [held] = worker._held()
        await asyncio.sleep(held.proven + PROVEN_LATELY * VISIBILITY_S - world.loop.now - 1)
        assert not world.ledger.lost
        await asyncio.sleep(2)

    world.run(play)
    assert world.ledger.lost == {JOB}


def test_what_a_worker_takes_along_is_nobodys_to_know_where_its_consumer_is_there_again_alone(make: Make) -> None:
    world = make(RUNS)

    async def play() -> None:
        worker = await running(world)
        drop(world, worker)
        world.drops.ended("worker-1#1")
        assert not world.ledger.lost, "its word tells that its consumer is missing"
        world.command("XGROUP", "CREATECONSUMER", KEYS.stream, GROUP, worker.consumer)
        world.kill("worker-1", again_after_s=1.0)

    world.run(play)
    assert world.ledger.lost == {JOB}


# ---- consumers that are no workers of ours


def held_by(make: Make, consumer: str) -> tuple[World, bytes]:
    """Return a world in which nobody acts but the test, and the entry that a consumer has had in hand for a minute."""
    world = make(Story(1, RUNS.setting, (), ()))
    world.command("HSET", KEYS.settings, "visibility_ms", int(VISIBILITY_S * 1000))
    world.command("XGROUP", "CREATE", KEYS.stream, GROUP, "0", "MKSTREAM")
    entry_id: bytes = world.command("XADD", KEYS.stream, "*", "play", "ok 1", "reaper.job", JOB)
    world.command("XREADGROUP", "GROUP", GROUP, consumer, "STREAMS", KEYS.stream, ">")
    world.run(lambda: asyncio.sleep(VISIBILITY_S))
    return world, entry_id


def drop_of(world: World, consumer: str) -> None:
    world.drops.note(KEYS.stream, consumer.encode())
    world.command("XGROUP", "DELCONSUMER", KEYS.stream, GROUP, consumer)
    assert JOB in world.ledger.dropped


@pytest.mark.parametrize(("back_at_look", "is_lost"), [(1, True), (2, False), (3, False)])
def test_whose_consumer_is_there_again_before_a_replica_looks_has_settled_all_to_everybody(
    make: Make, back_at_look: int, is_lost: bool
) -> None:
    world, _ = held_by(make, "somebody")
    drop_of(world, "somebody")
    for look in (1, 2):
        if look == back_at_look:
            world.command("XGROUP", "CREATECONSUMER", KEYS.stream, GROUP, "somebody")
        world.drops.replica_looks()
    assert (JOB in world.ledger.lost) is is_lost


def test_replicas_look(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    world = make(RUNS)
    monkeypatch.setattr(world.drops, "replica_looks", lambda: looks.append(world.loop.now))
    world.begin()
    world.run(lambda: asyncio.sleep(2 * VISIBILITY_S))
    assert looks


@pytest.mark.parametrize(("is_put_back", "is_lost"), [(False, True), (True, False)])
def test_what_went_with_a_consumer_goes_with_the_group_that_an_operator_has_forgotten(
    make: Make, is_put_back: bool, is_lost: bool
) -> None:
    world, entry_id = held_by(make, "somebody")
    drop_of(world, "somebody")
    if is_put_back:
        world.command("XCLAIM", KEYS.stream, GROUP, "another", 0, entry_id, "FORCE")
    world.drops.forgotten()
    assert (JOB in world.ledger.lost) is is_lost


@pytest.mark.parametrize(("laid_aside_s", "is_lost"), [(1.0, True), (VISIBILITY_S, False)])
def test_what_was_laid_aside_after_every_scan_is_nobodys_to_know_however_idle_it_is_said_to_be(
    make: Make, laid_aside_s: float, is_lost: bool
) -> None:
    world, entry_id = held_by(make, "somebody")
    words = KEYS.stream, GROUP, READER, 0, entry_id, "IDLE", 4 * 10**9, "JUSTID"
    world.command("XCLAIM", *words)
    world.run(lambda: asyncio.sleep(laid_aside_s))
    drop_of(world, READER)
    assert (JOB in world.ledger.lost) is is_lost


@pytest.mark.parametrize(("consumer", "is_lost"), [("somebody", True), ("w~0123456789ab", False)])
def test_what_a_third_party_consumer_held_is_known_to_the_replica_that_saw_it_alone(
    make: Make, consumer: str, is_lost: bool
) -> None:
    world, _ = held_by(make, consumer)
    world.command("HSET", KEYS.settings, f"registration:{consumer}", "1,")
    drop_of(world, consumer)
    assert not world.ledger.lost
    world.drops.holder_begins()
    assert (JOB in world.ledger.lost) is is_lost
