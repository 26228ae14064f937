"""The witness meets what is wrong in the step that does it.

Here the test does it itself, because no part of the product would.
"""

import asyncio
from collections.abc import Sequence
from unittest import mock

import pytest

from reaper.drill.promises import Execution
from tests.simulation import server_faults
from tests.simulation import stillness as stillness_module
from tests.simulation.actors.our_worker import OurWorker
from tests.simulation.conftest import Make
from tests.simulation.places import GROUP, KEYS, URL
from tests.simulation.plays import Act
from tests.simulation.stillness import Stillness
from tests.simulation.story import NewJob, Setting, Step, Story
from tests.simulation.world import World
from workers.protocol.connection import commands_client

EMPTY = Story(1, Setting(), (), ())


def delivered(world: World) -> bytes:
    """Enqueue one job, and let a foreign worker read it. Return its entry ID."""
    world.command("XGROUP", "CREATE", KEYS.stream, GROUP, "0", "MKSTREAM")
    entry_id: bytes = world.command("XADD", KEYS.stream, "*", "play", "ok 1", "reaper.job", "job-1")
    world.command("XREADGROUP", "GROUP", GROUP, "somebody", "STREAMS", KEYS.stream, ">")
    assert not world.findings.sentences
    return entry_id


def test_an_acknowledged_job_that_nobody_ran_is_met_in_the_step_that_acknowledged_it(make: Make) -> None:
    world = make(EMPTY)
    entry_id = delivered(world)
    world.command("XACK", KEYS.stream, GROUP, entry_id)
    [sentence] = world.findings.sentences
    assert sentence.startswith("I1: job job-1 was enqueued and is nowhere")
    assert sentence.endswith("(at 0.000000 s, by nobody)")


def test_one_whose_work_was_completed_may_be_acknowledged(make: Make) -> None:
    world = make(EMPTY)
    entry_id = delivered(world)
    world.ledger.complete(Execution("job-1"))
    world.command("XACK", KEYS.stream, GROUP, entry_id)
    assert not world.findings.sentences


def test_a_job_with_the_entry_id_of_a_lost_one_is_not_asked_for(make: Make) -> None:
    world = make(EMPTY)
    entry_id = delivered(world)
    world.command("DEL", KEYS.stream)
    world.losses.note_lost_jobs()
    world.command("XGROUP", "CREATE", KEYS.stream, GROUP, "0", "MKSTREAM")
    world.findings.sentences.clear()
    world.command("XADD", KEYS.stream, entry_id, "play", "ok 1", "reaper.job", "job-2")
    world.command("XREADGROUP", "GROUP", GROUP, "somebody", "STREAMS", KEYS.stream, ">")
    world.command("XACK", KEYS.stream, GROUP, entry_id)
    assert not world.findings.sentences
    assert "job-2" in world.ledger.lost


def test_a_copy_whose_original_is_pending_still_is_met(make: Make) -> None:
    world = make(EMPTY)
    delivered(world)
    world.command("XADD", KEYS.retry, "*", "play", "ok 1", "reaper.job", "job-1", "reaper.deliveries", "1")
    [sentence] = world.findings.sentences
    assert sentence.startswith("I1: job job-1 is in more than one place: ready and pending (at ")


def test_a_dead_letter_whose_original_is_pending_still_is_met(make: Make) -> None:
    world = make(EMPTY)
    delivered(world)
    world.command("XADD", KEYS.dead, "*", "play", "ok 1", "reaper.job", "job-1", "reaper.dead.reason", "rejected")
    [sentence] = world.findings.sentences
    assert sentence.startswith("I1: job job-1 is in more than one place: pending and dead_lettered (at ")


def test_an_innocent_that_is_given_up_is_met(make: Make) -> None:
    world = make(EMPTY)
    entry_id = delivered(world)
    world.ledger.starts.append(Execution("job-1"))
    world.command(
        "EVAL",
        "redis.call('XADD', KEYS[1], '*', 'play', 'ok 1', 'reaper.job', 'job-1', 'reaper.deliveries', '3',"
        " 'reaper.dead.reason', 'max_deliveries') redis.call('XACK', KEYS[2], ARGV[1], ARGV[2])",
        2,
        KEYS.dead,
        KEYS.stream,
        GROUP,
        entry_id,
    )
    [sentence] = world.findings.sentences
    assert sentence.startswith(
        "I5: job job-1 was given up, and no execution of it failed, hung or ended its process (at"
    )


def test_a_lease_that_is_taken_from_its_holder_and_one_that_never_expires_are_met(make: Make) -> None:
    world = make(EMPTY)
    world.command("SET", KEYS.lease, "a.1@10000", "PX", 10_000)
    assert not world.findings.sentences
    world.command("SET", KEYS.lease, "b.2@10000", "PX", 10_000)
    world.command("SET", KEYS.lease, "c.3@10000")
    taken, *_, never = world.findings.sentences
    assert "takes the lease while it is a.1@10000 (at " in taken
    assert any("the lease c.3@10000 never expires" in one for one in world.findings.sentences), never


def test_what_others_take_from_a_worker_that_lives_is_met(make: Make) -> None:
    setting = Setting(workers=1, replicas=1)
    world = make(Story(1, setting, (NewJob(0.0, 1, (Act("ok", 50.0),)),), (), 60.0))
    world.begin()

    async def rob() -> None:
        while not world.ledger.starts:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        [[entry_id, *_]] = world.command("XPENDING", KEYS.stream, GROUP, "-", "+", 10)
        world.command("XCLAIM", KEYS.stream, GROUP, "robber", 0, entry_id)

    world.run(rob)
    [sentence] = world.findings.sentences
    assert sentence.startswith("I2: job job-001 was taken from worker-1#1, which was silent for 0.")


@pytest.mark.parametrize(
    ("word_ends_ms", "in_force_ms", "is_robbed"),
    [(0, 1_000, False), (0, 3_000, True), (10**15, 1_000, True), (None, 1_000, True)],
)
def test_a_worker_that_let_its_word_end_lives_by_the_group_settings_and_one_whose_word_counts_or_is_missing_does_not(
    make: Make, word_ends_ms: int | None, in_force_ms: int, is_robbed: bool
) -> None:
    setting = Setting(workers=1, replicas=1, visibility_s=60.0)
    world = make(Story(1, setting, (NewJob(0.0, 1, (Act("ok", 50.0),)),), (), 60.0))
    world.begin()

    async def rob() -> None:
        while not world.ledger.starts:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)
        [[entry_id, consumer, *_]] = world.command("XPENDING", KEYS.stream, GROUP, "-", "+", 10)
        world.command("HSET", KEYS.settings, "visibility_ms", in_force_ms)
        if word_ends_ms is None:
            world.command("HDEL", KEYS.settings, b"registration:" + consumer)
        else:
            world.command("HSET", KEYS.settings, b"registration:" + consumer, f"{word_ends_ms},")
        world.command("XCLAIM", KEYS.stream, GROUP, "robber", 0, entry_id)

    world.run(rob)
    assert len(world.findings.sentences) == is_robbed


LIVES_S = 60.0


@pytest.mark.parametrize(
    ("silent", "pauses", "ahead", "is_robbed"),
    [
        (0.9, (), (), True),
        (1.1, (), (), False),
        (1.1, (0.3,), (), False),  # the server does not notice a pause of less than a third
        (1.1, (0.3, 0.3), (), False),  # nor several ones
        (1.1, (0.5,), (), True),
        (1.1, (0.3, 0.5), (), True),
        (3.0, (2.5,), (), True),
        (3.6, (2.5,), (), False),
        (0.8, (), (0.3,), False),  # nor a step of the clock
        (0.8, (), (0.4,), True),
        (0.8, (0.3,), (0.3,), True),  # both in one pause
        (0.7, (), (0.2,), True),  # it does not seem silent for long enough
        (0.7, (), (0.3, -0.3), True),
        (0.5, (), (60.0,), True),
        (0.5, (), (-60.0,), True),
    ],
)
def test_a_live_worker_is_robbed_that_could_not_be_served_for_long_enough(
    make: Make, silent: float, pauses: Sequence[float], ahead: Sequence[float], is_robbed: bool
) -> None:
    """All are parts of its visibility timeout, since its last heartbeat: silence, pauses and steps of the clock."""
    world = make(Story(1, Setting(workers=1, replicas=0, visibility_s=LIVES_S), (), (), 60.0))
    world.begin()

    async def pass_time() -> bool:
        await asyncio.sleep(5)
        proven = world.loop.now - 0.001
        for pause in pauses:
            server_faults.freeze(world, Step(0.0, "freeze", seconds=pause * LIVES_S))
            if not ahead:
                await asyncio.sleep(pause * LIVES_S + 1)
        for step in ahead:
            world.clock.step(step * LIVES_S)
        await asyncio.sleep(proven + silent * LIVES_S - world.loop.now)
        worker = world.actors["worker-1"]
        assert isinstance(worker, OurWorker)
        return bool(worker._early(proven))

    assert world.run(pass_time) is is_robbed


@pytest.mark.parametrize(("silent", "is_robbed"), [(0.45, True), (0.55, False)])
def test_a_lost_heartbeat_excuses_a_recovery_after_half_a_timeout(make: Make, silent: float, is_robbed: bool) -> None:
    world = make(Story(1, Setting(workers=1, replicas=0, visibility_s=LIVES_S), (), (), 60.0))
    world.begin()

    async def pass_time() -> bool:
        await asyncio.sleep(20)
        server_faults.restart(world, Step(0.0, "loss", value=5_000))
        worker = world.actors["worker-1"]
        assert isinstance(worker, OurWorker)
        proven = world.loop.now - 1.0
        await asyncio.sleep(silent * LIVES_S - 1.0)
        return bool(worker._early(proven))

    assert world.run(pass_time) is is_robbed


@pytest.mark.parametrize(
    ("fault", "seconds", "unserved_s"),
    [
        ("freeze", 3.0, 3.0),
        ("restart", 3.0, 3.0),
        ("failover", 3.0, 3.0),
        ("load", 3.0, 3.1),
        ("deny xclaim", 3.0, 3.0),
        ("deny write", 3.0, 3.0),
        ("deny xadd", 3.0, 0.0),  # a heartbeat does not need that right
        ("memory", 3.0, 0.0),
        ("freeze", 30.0, 5.0),  # it is healed meanwhile
    ],
)
def test_time_without_service_is_noted(make: Make, fault: str, seconds: float, unserved_s: float) -> None:
    kind, _, value = fault.partition(" ")
    step = Step(5.0, kind, "", seconds, value or (100 if kind == "failover" else None))
    world = make(Story(1, Setting(workers=1, replicas=1), (), (step,), 10.0))
    world.begin()

    async def pass_time() -> None:
        await asyncio.sleep(10)
        world.heal()
        await asyncio.sleep(5)

    world.run(pass_time)
    assert world.unserved.seconds_since(0.0) == pytest.approx(unserved_s, abs=0.01)
    assert world.unserved.seconds_since(10.0) == pytest.approx(0.0, abs=0.01)


def test_what_stands_still_while_nothing_befalls_anybody_is_met_and_that_status_is_content(make: Make) -> None:
    # There is no replica, so there is no recovery, and a foreign worker keeps one job for ever.
    world = make(Story(1, Setting(workers=1, replicas=0), (), (), 60.0))
    world.begin()
    delivered(world)
    stillness = Stillness(world)

    async def watch() -> None:
        client = commands_client(URL)
        await stillness.look(client)
        await asyncio.sleep(stillness.bound_s - 1)
        await stillness.look(client)
        assert not world.findings.sentences
        await asyncio.sleep(2)
        with mock.patch.object(stillness_module, "judge", return_value=()):
            await stillness.look(client)

    world.run(watch)
    assert [sentence.partition(" ")[0] for sentence in world.findings.sentences] == ["I6:", "S:"]


def test_a_proof_that_the_server_has_lost_is_none(make: Make) -> None:
    """It knows the one before, and the worker may be cut off from it until that is too old (seed 5334843)."""
    world = make(Story(1, Setting(workers=1, replicas=1), (), (), 60.0))
    world.begin()

    async def pass_time() -> None:
        await asyncio.sleep(20)
        server_faults.restart(world, Step(0.0, "loss", seconds=1.0, value=5_000))
        await asyncio.sleep(20)
        server_faults.fail_over(world, Step(0.0, "failover", seconds=1.0, value=1_000))
        await asyncio.sleep(5)

    world.run(pass_time)
    times = (14.9, 15.1, 19.9, 20.1, 38.9, 39.1, 40.1)
    assert [world.losses.include(at) for at in times] == [False, True, True, False, False, True, False]
