"""What others make Redis forget is asked for, but where nobody can know of it. Here we drop it ourselves."""

import asyncio

from tests.simulation.cast import OurWorker
from tests.simulation.conftest import Make
from tests.simulation.drops import PROVEN_LATELY
from tests.simulation.places import GROUP, KEYS
from tests.simulation.plays import Act
from tests.simulation.story import NewJob, Setting, Story
from tests.simulation.world import World

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
        world.drops.refused("worker-1#1", JOB, 0.0)
        await asyncio.sleep(VISIBILITY_S)

    world.run(play)
    assert not world.ledger.lost


def test_what_a_worker_has_never_had_is_nobodys_to_know(make: Make) -> None:
    world = make(RUNS)

    async def play() -> None:
        worker = await running(world)
        [held] = worker._held()
        held.source.forget(held)  # as if its reply had been lost
        drop(world, worker)

    world.run(play)
    assert world.ledger.lost == {JOB}


def test_what_a_worker_has_not_proven_since_its_word_stands_is_nobodys_to_know(make: Make) -> None:
    world = make(RUNS)

    async def play() -> None:
        worker = await running(world)
        drop(world, worker)
        world.drops.refused("worker-1#1", JOB, world.loop.now)

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
