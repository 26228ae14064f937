"""The witness meets what is wrong in the step that does it. Here we do it ourselves: nothing of the product would."""

import asyncio
from unittest import mock

import pytest

from tests.simulation import stillness as stillness_module
from tests.simulation.conftest import Make
from tests.simulation.places import GROUP, KEYS, URL
from tests.simulation.plays import Act
from tests.simulation.stillness import Stillness
from tests.simulation.story import NewJob, Setting, Story
from tests.simulation.world import World
from tests.support.invariants import Execution
from workers.protocol.connection import commands_client

EMPTY = Story(1, Setting(), (), ())


def delivered(world: World) -> bytes:
    """Have one job enqueued, and read by a worker that is none of ours; return its entry ID."""
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
    assert sentence.startswith("I1: job job-1 is in more than one place: pending and dead (at ")


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


@pytest.mark.parametrize(("first", "then"), [("2:a", "1:b"), ("2:a", "2:b")])
def test_a_fence_of_an_earlier_term_or_of_somebody_else_in_the_same_is_met(make: Make, first: str, then: str) -> None:
    world = make(EMPTY)
    world.command("SET", KEYS.fence, f"reaper:{first}")
    world.command("SET", KEYS.fence, f"reaper:{first}")
    assert not world.findings.sentences
    world.command("SET", KEYS.fence, f"reaper:{then}")
    [sentence] = world.findings.sentences
    assert sentence.startswith(f"I3: the fence reaper:{then} follows {first} (at ")


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
    assert sentence.startswith("I8: job job-001 was taken from worker-1#1, which proved 0.")


@pytest.mark.parametrize(
    ("word_ends_ms", "agreed_ms", "is_robbed"),
    [(0, 1_000, False), (0, 3_000, True), (10**15, 1_000, True), (None, 1_000, True)],
)
def test_a_worker_that_let_its_word_end_lives_by_what_is_agreed_on_and_one_whose_word_counts_or_is_missing_does_not(
    make: Make, word_ends_ms: int | None, agreed_ms: int, is_robbed: bool
) -> None:
    setting = Setting(workers=1, replicas=1, visibility_s=60.0)
    world = make(Story(1, setting, (NewJob(0.0, 1, (Act("ok", 50.0),)),), (), 60.0))
    world.begin()

    async def rob() -> None:
        while not world.ledger.starts:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)
        [[entry_id, consumer, *_]] = world.command("XPENDING", KEYS.stream, GROUP, "-", "+", 10)
        world.command("HSET", KEYS.agreement, "visibility_ms", agreed_ms)
        if word_ends_ms is None:
            world.command("HDEL", KEYS.agreement, b"member:" + consumer)
        else:
            world.command("HSET", KEYS.agreement, b"member:" + consumer, f"1,60000,3,{word_ends_ms},1,")
        world.command("XCLAIM", KEYS.stream, GROUP, "robber", 0, entry_id)

    world.run(rob)
    assert len(world.findings.sentences) == is_robbed


def test_a_step_ahead_is_unknown_to_those_who_were_started_after_it_alone(make: Make) -> None:
    world = make(Story(1, Setting(workers=1, replicas=1), (), (), 60.0))
    world.begin()

    async def pass_time() -> None:
        await asyncio.sleep(5)
        world.clock.step(90.0)
        await asyncio.sleep(5)
        world.kill("worker-1", again_after_s=1.0)
        await asyncio.sleep(5)
        for caller, since, unseen_s in (
            ("reaper-1#1", 3.0, 0.0),  # it was there, and is to know
            ("worker-1#2", 3.0, 90.0),
            ("worker-1#2 (heartbeat)", 3.0, 90.0),
            ("worker-1#2", 7.0, 0.0),  # what was touched after the step looks no older
            ("", 3.0, 0.0),
        ):
            world.witness.caller = caller
            assert world.step_unseen_by_caller_s(since) == unseen_s

    world.run(pass_time)


@pytest.mark.parametrize(("by_s", "unseen_s"), [(1.0, 1.0), (5.0, 5.0), (5.1, 0.0), (-1.0, 0.0)])
def test_a_step_of_a_few_seconds_is_told_from_a_slow_answer_by_nobody(make: Make, by_s: float, unseen_s: float) -> None:
    world = make(Story(1, Setting(workers=1, replicas=1), (), (), 60.0))
    world.begin()

    async def pass_time() -> None:
        await asyncio.sleep(5)
        world.clock.step(by_s)
        for since, expected in ((3.0, unseen_s), (7.0, 0.0)):
            for caller in ("reaper-1#1", "worker-1#1"):
                world.witness.caller = caller
                assert world.step_unseen_by_caller_s(since) == expected

    world.run(pass_time)


@pytest.mark.parametrize(
    ("back_at", "ahead_at", "elected_at", "since", "unseen_s"),
    [
        (5.0, 10.0, 12.0, 8.0, 60.0),
        (5.0, 10.0, 12.0, 11.0, 0.0),  # touched after both
        (5.0, 10.0, 9.0, 8.0, 0.0),  # it led when the clock was set ahead
        (5.0, 30.0, 31.0, 8.0, 0.0),  # a follower has looked in between
    ],
)
def test_what_a_follower_can_not_see_is_a_clock_that_was_set_back_and_ahead_again(
    make: Make, back_at: float, ahead_at: float, elected_at: float, since: float, unseen_s: float
) -> None:
    """It looks at the server's clock twice in a lease of 30 s (seed 4000947)."""
    world = make(Story(1, Setting(workers=1, replicas=1, lease_s=30.0), (), (), 60.0))
    world.begin()

    async def pass_time() -> None:
        await asyncio.sleep(1)
        world.clock.steps[:] = [(back_at, -60.0), (ahead_at, 90.0)]
        world.witness.elected_at = elected_at
        for caller, expected in (("reaper-1#1", unseen_s), ("worker-1#1", 0.0)):
            world.witness.caller = caller
            assert world.step_unseen_by_caller_s(since) == expected

    world.run(pass_time)


def test_what_stands_still_while_nothing_befalls_anybody_is_met_and_that_status_is_content(make: Make) -> None:
    # Nobody recovers: there is no replica; and a worker of another's has one job for ever.
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
        world.restart_server(1.0, lose_last_ms=5_000)
        await asyncio.sleep(20)
        world.fail_over(1.0, lag_ms=1_000)
        await asyncio.sleep(5)

    world.run(pass_time)
    times = (14.9, 15.1, 19.9, 20.1, 38.9, 39.1, 40.1)
    assert [world.has_lost_what_was_written(at) for at in times] == [False, True, True, False, False, True, False]
