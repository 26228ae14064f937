"""The judge excuses some jobs, and does not excuse similar ones."""

import asyncio

import pytest

from reaper.drill.promises import Execution
from tests.simulation.cast import OurWorker
from tests.simulation.conftest import Make
from tests.simulation.places import GROUP, KEYS, URL
from tests.simulation.play import play
from tests.simulation.plays import Act
from tests.simulation.story import EMBEDDED, IN_PLACE, NewJob, Setting, Step, Story
from tests.simulation.world import World
from workers.protocol.connection import commands_client
from workers.protocol.events import event_fields

JOB = Execution("job-1")


def world_of(make: Make, **setting: object) -> World:
    """Return a world in which only the test acts, with one job in the hands of a worker."""
    world = make(Story(1, Setting(version="8.4", redelivery=IN_PLACE, **setting), (), ()))  # type: ignore[arg-type]
    world.command("XGROUP", "CREATE", KEYS.stream, GROUP, "0", "MKSTREAM")
    world.command("XADD", KEYS.stream, "*", "play", "ok 1", "reaper.job", JOB.job)
    world.command("XREADGROUP", "GROUP", GROUP, "somebody", "STREAMS", KEYS.stream, ">")
    return world


def entry_of(world: World) -> bytes:
    [[entry_id, *_]] = world.command("XPENDING", KEYS.stream, GROUP, "-", "+", 10)
    assert isinstance(entry_id, bytes)
    return entry_id


# ---- a read took a waiting entry after a step back of the server's clock (decision 10)


def look_at_all(world: World) -> list[str]:
    """Judge everything, and return the violations."""
    world.command("XGROUP", "CREATECONSUMER", KEYS.stream, GROUP, "anybody")
    return [sentence.partition(" (at")[0] for sentence in world.findings.sentences]


def test_what_a_read_has_taken_from_somebody_is_pending_and_not_lost(make: Make) -> None:
    world = world_of(make)
    world.clock.step(-60.0)
    world.command("XREADGROUP", "GROUP", GROUP, "reader", "CLAIM", 10**9, "STREAMS", KEYS.stream, ">")
    assert look_at_all(world) == []


# ---- no process may write the journal


@pytest.mark.parametrize(
    ("verb", "allowed", "starts", "is_wrong"),
    [("retry", True, 2, False), ("retry", False, 2, False), ("retry", False, 3, True), ("nack", False, 2, True)],
)
def test_what_the_journal_could_not_tell_was_given_back_all_the_same(
    make: Make, verb: str, allowed: bool, starts: int, is_wrong: bool
) -> None:
    world = world_of(make, max_deliveries=1)
    words = event_fields("nacked", job=JOB.job, group=GROUP, entry="1-0", delivery=1, verb=verb)
    script = "redis.pcall('XADD', KEYS[1], '*', unpack(ARGV))"

    async def give_back() -> None:
        client = commands_client(URL)
        if not allowed:
            world.server.revoke("default", "xadd")
        await client.eval(script, 1, KEYS.journal, *words)
        await client.aclose()

    world.run(give_back)
    world.ledger.starts.extend([JOB] * starts)
    world.command("XCLAIM", KEYS.stream, GROUP, "another", 0, entry_of(world))
    assert any(sentence.startswith("I5: generation 0 of job job-1") for sentence in look_at_all(world)) == is_wrong


# ---- delivered, and never received


@pytest.mark.parametrize("is_dead", [False, True])
@pytest.mark.parametrize(("limit", "is_to_blame"), [(1, True), (2, False)])
def test_an_only_delivery_ends_with_whom_it_was_handed_out_to(
    make: Make, limit: int, *, is_to_blame: bool, is_dead: bool
) -> None:
    world = make(Story(1, Setting(workers=1, replicas=1, max_deliveries=limit), (), (), 60.0))
    world.begin()

    async def hand_out_and_kill() -> None:
        await asyncio.sleep(10)
        if is_dead:  # the server does not know it, because a read of the worker still waits there
            world.kill("worker-1", again_after_s=30.0, abruptly=True)
        world.command("XADD", KEYS.stream, "*", "play", "ok 1", "reaper.job", JOB.job)
        assert entry_of(world)  # the server answered that read, and its reply is on its way
        world.kill("worker-1", again_after_s=30.0)

    world.run(hand_out_and_kill)
    assert world.ledger.starts == []
    assert world.ledger.endings == [JOB] * is_to_blame


# ---- a server that has lost its latest writes


@pytest.mark.parametrize("how", ["restart", "failover"])
@pytest.mark.parametrize("settled", [True, False])
def test_a_delivery_whose_end_was_lost_is_for_nothing_and_others_are_not(make: Make, how: str, settled: bool) -> None:
    world = world_of(make)
    world.begin()

    async def settle() -> None:
        await asyncio.sleep(10)
        if settled:
            world.ledger.complete(JOB)
            world.command("XACK", KEYS.stream, GROUP, entry_of(world))
        if how == "restart":
            world.restart_server(1.0, lose_last_ms=5_000)
        else:
            world.fail_over(1.0, lag_ms=5_000)
        assert len(world.command("XPENDING", KEYS.stream, GROUP, "-", "+", 10)) == 1

    world.run(settle)
    assert world.ledger.endings == [JOB] * settled


@pytest.mark.parametrize(
    ("lag_s", "proves", "is_robbed"), [(10.0, False, False), (1.0, False, True), (10.0, True, True)]
)
def test_what_the_server_has_lost_that_a_worker_has_is_taken_from_nobody(
    make: Make, lag_s: float, proves: bool, is_robbed: bool
) -> None:
    """Without a later heartbeat of the worker for it."""
    setting = Setting(workers=1, replicas=1, visibility_s=600.0, concurrency=1)
    first, second = NewJob(5.0, 1, (Act("ok", 10.0),)), NewJob(6.0, 2, (Act("ok", 500.0),))
    world = make(Story(1, setting, (first, second), (), 60.0))
    world.begin()

    async def play_it() -> None:
        await asyncio.sleep(20)
        worker = world.actors["worker-1"]
        [(key, entry_id)] = worker.holdings()
        world.fail_over(1.0, lag_ms=round(lag_s * 1000))
        await asyncio.sleep(0.5)
        if proves:
            assert isinstance(worker, OurWorker)
            [held] = worker._held()
            held.proven = world.loop.now
        world.command("XCLAIM", key, GROUP, "another", 0, entry_id, "FORCE")

    world.run(play_it)
    assert any(sentence.startswith("I2: job job-002 was taken") for sentence in world.findings.sentences) is is_robbed


@pytest.mark.parametrize("is_away", [True, False])
def test_nobody_proves_his_life_to_a_server_that_comes_back_and_takes_few_clients(make: Make, is_away: bool) -> None:
    """Otherwise its earlier deliveries stay, and get heartbeats (seed 4699)."""
    setting = Setting(workers=1, replicas=1, visibility_s=60.0, concurrency=1)
    world = make(Story(1, setting, (NewJob(5.0, 1, (Act("ok", 30.0),)),), (), 60.0))
    world.begin()

    async def limit() -> None:
        await asyncio.sleep(10)
        if is_away:
            world.restart_server(2.0)
        blamed = len(world.ledger.endings)
        world.limit_clients(20.0, 2)
        assert set(world.ledger.endings[blamed:]) == ({Execution("job-001")} if is_away else set())
        await asyncio.sleep(30)
        assert not any(world.ledger.out_of_sight.values())

    world.run(limit)


# ---- the server's clock was set back, and delays end by it

DELAYED = Story(
    seed=700385,
    setting=Setting(version="8.4", recovery=EMBEDDED, redelivery=IN_PLACE, visibility_s=60.0, lease_s=120.0),
    jobs=(NewJob(20.0, 9, (Act("ok", 1.3),), delay=17.5),),
    steps=(Step(22.0, "clock", value=-3600.0), Step(30.0, "clock", value=-3600.0)),
    length_s=60.0,
)


def test_what_is_due_by_a_clock_that_was_set_back_is_waited_for_as_much_longer() -> None:
    outcome = play(DELAYED)
    assert outcome.violations == ()
    assert outcome.executions == 1
    assert outcome.virtual_s > 7200


# ---- no process may read pending entries


@pytest.mark.parametrize("is_denied", [False, True])
def test_what_no_leader_may_have_seen_nobody_can_tell_of_once_its_group_is_gone(make: Make, *, is_denied: bool) -> None:
    world = world_of(make)
    world.command("HSET", KEYS.agreement, "policy", IN_PLACE, "marked", 1)
    if is_denied:
        world.server.revoke("default", "xpending")
    world.drop_group(KEYS.stream)
    assert world.ledger.dropped.keys() == {JOB.job}
    assert world.ledger.lost == ({JOB.job} if is_denied else set())
