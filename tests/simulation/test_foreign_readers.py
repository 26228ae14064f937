"""What a leader tells of workers that are not ours, and does: readers with a backlog, slow ones, dead ones."""

import asyncio
from collections import Counter
from random import Random

import pytest

from reaper.recovery.source_watch import LOOKS, SPARED
from reaper.replicas import GroupReport
from tests.simulation.foreign import VISIBILITY_S, Habits, Place, play

BATCH = 20


def jobs(number: int) -> list[bytes]:
    return [b"%d" % one for one in range(number)]


# ---- deliveries taken from the living


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("crashes_after", [2.0, 9.5, 15.0, 21.0])
@pytest.mark.parametrize("again_after", [0.5, 8.0, 40.0])
def test_nobody_is_named_who_died_and_was_started_again_under_his_name(
    seed: int, crashes_after: float, again_after: float
) -> None:
    async def program(place: Place) -> GroupReport:
        place.add(*jobs(60))
        place.start("web-1", Habits(count=BATCH, seconds=lambda _: 1.3))  # 26 s a batch: the timeout fits
        began = place.world.loop.now
        await asyncio.sleep(crashes_after)
        place.kill("web-1", again_after)
        await place.until(began + 5 * VISIBILITY_S)
        return place.report

    report = play(program, seed=seed)
    assert report.recovered > 0
    assert report.from_living == 0


@pytest.mark.parametrize("at_once", [1, 5, BATCH])
def test_nobody_is_named_whose_jobs_fit_into_the_timeout(at_once: int) -> None:
    async def program(place: Place) -> GroupReport:
        place.add(*jobs(5 * BATCH))
        place.start("web-1", Habits(count=BATCH, seconds=lambda _: 1.3, at_once=at_once))
        await place.until(6 * VISIBILITY_S)
        return place.report

    report = play(program)
    assert (report.recovered, report.from_living, report.read_on) == (0, 0, 0)


def test_who_is_slow_with_one_job_is_told_of_as_one_who_may_have_been_started_again() -> None:
    async def program(place: Place) -> GroupReport:
        place.add(*jobs(3))
        place.start("web-1", Habits(count=1, seconds=lambda _: 1.5 * VISIBILITY_S))
        await place.until(4 * VISIBILITY_S)
        return place.report

    report = play(program)
    assert (report.from_living, report.read_on > 0) == (0, True)
    assert report.reading_on == {"web-1": report.read_on}


@pytest.mark.parametrize("seed", range(3))
def test_workers_of_ours_are_told_of_in_no_way_whatever_befalls_them(seed: int) -> None:
    async def program(place: Place) -> GroupReport:
        place.add(*[b"ok 75", b"ok 5", b"kill 24; ok 1", b"ok 1"] * 5)
        await place.until(2 * VISIBILITY_S)
        place.world.pause("worker-1", 1.5 * VISIBILITY_S)
        await place.until(8 * VISIBILITY_S)
        return place.report

    report = play(program, seed=seed, ours=2)
    assert report.recovered > 0
    assert (report.from_living, report.read_on) == (0, 0)


def test_who_is_gone_for_good_is_told_of_in_no_way() -> None:
    async def program(place: Place) -> GroupReport:
        place.add(*jobs(BATCH))
        place.start("web-1", Habits(count=BATCH, seconds=lambda _: 1.3))
        await asyncio.sleep(5)
        place.kill("web-1", again_after_s=100 * VISIBILITY_S)
        await place.until(4 * VISIBILITY_S)
        return place.report

    report = play(program)
    assert report.recovered > 0
    assert (report.from_living, report.read_on) == (0, 0)


# ---- sparing those who are at work

SPARING = {"spare_the_living": True}
SOON_S = VISIBILITY_S * (1 + 2 / LOOKS)
"""A visibility timeout, and what may pass until a settlement is seen."""


def starts(place: Place) -> Counter[str]:
    return Counter(execution.job for execution in place.world.ledger.starts)


def test_nothing_is_taken_from_who_is_at_work_and_each_job_runs_once() -> None:
    async def program(place: Place) -> tuple[GroupReport, Counter[str]]:
        place.add(*jobs(3 * BATCH))
        place.start("web-1", Habits(count=BATCH, seconds=lambda _: 6.0))  # four timeouts a batch
        await place.until(14 * VISIBILITY_S)
        return place.report, starts(place)

    report, times = play(program, group=SPARING)
    assert (report.recovered, report.from_living) == (0, 0)
    assert (len(times), set(times.values())) == (3 * BATCH, {1})


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("again_after", [0.5, 8.0, 40.0, 1_000.0])
@pytest.mark.parametrize("crashes_after", [3.0, 21.0, 50.0])
def test_what_a_dead_one_held_comes_back_when_he_has_stood_still_for_a_visibility_timeout(
    seed: int, again_after: float, crashes_after: float
) -> None:
    async def program(place: Place) -> tuple[set[str], set[str]]:
        place.add(*jobs(3 * BATCH))
        place.start("web-1", Habits(count=BATCH, seconds=lambda _: 6.0))
        await place.until(VISIBILITY_S)  # the leader must have watched for so long
        await asyncio.sleep(crashes_after)
        place.kill("web-1", again_after)
        held = {entry_id for entry_id, _, _ in place.pending()}
        await asyncio.sleep(SOON_S + 2)
        return held, {entry_id for entry_id, _, _ in place.pending()}

    held, still = play(program, seed=seed, group=SPARING)
    assert held
    assert not held & still


def test_what_somebody_holds_for_ever_comes_back_while_he_settles_others() -> None:
    async def program(place: Place) -> tuple[str, list[tuple[str, str, int]], list[tuple[str, str, int]], int]:
        (poison,) = place.add(b"poison")
        place.add(*jobs(2_000))
        habits = Habits(count=1, at_once=4, reads_on=True, seconds=lambda payload: 1e9 if payload == b"poison" else 3.0)
        reader = place.start("web-1", habits)
        await place.until(VISIBILITY_S)
        before = place.pending()
        await place.until(VISIBILITY_S + SOON_S + 5)
        return poison.decode(), before, place.pending(), len(reader.done)

    poison, before, after, done = play(program, group=SPARING)
    assert (poison, "web-1", 1) in before
    assert poison not in {entry_id for entry_id, _, _ in after}
    assert done > 60, "it has gone on with others"


def test_nothing_is_spared_for_longer_than_ten_timeouts() -> None:
    async def program(place: Place) -> tuple[int, int]:
        place.add(*jobs(200))
        place.start("web-1", Habits(count=200, seconds=lambda _: 6.0))  # forty timeouts
        await place.until(SPARED * VISIBILITY_S)
        before = place.report.recovered
        await place.until((SPARED + 0.5) * VISIBILITY_S)
        return before, place.report.recovered

    before, after = play(program, group=SPARING)
    assert before == 0
    assert after > 100


def test_a_new_leader_takes_nothing_before_it_has_watched_for_a_visibility_timeout() -> None:
    async def program(place: Place) -> tuple[int, int, int]:
        place.add(*jobs(BATCH))
        place.start("web-1", Habits(count=BATCH, seconds=lambda _: 6.0))
        await place.until(1.5 * VISIBILITY_S)
        place.world.kill("reaper-1", again_after_s=1)
        await asyncio.sleep(2)
        began = place.world.loop.now
        await place.until(3 * VISIBILITY_S)
        living = place.report
        place.kill("web-1", 1_000.0)
        await place.until(began + 5 * VISIBILITY_S)
        return living.recovered, living.late_ms, place.report.recovered

    recovered, late_ms, of_the_dead = play(program, group=SPARING)
    assert (recovered, late_ms) == (0, 0)
    assert of_the_dead > 0


# ---- counting


@pytest.mark.parametrize(("marked", "at_once"), [(True, 5), (False, 1)])
def test_two_reads_of_history_give_up_no_job_after_one_execution(marked: bool, at_once: int) -> None:
    """Where nobody has said that workers read their history, they are suspects, and let out one by one."""

    async def program(place: Place) -> tuple[set[int], int, int]:
        place.add(*jobs(5))
        place.start("web-1", Habits(count=5, seconds=lambda _: 20.0, history=2))
        await asyncio.sleep(3)
        place.kill("web-1", again_after_s=2)
        await asyncio.sleep(10)
        place.kill("web-1", again_after_s=1_000)
        counts = {count for _, _, count in place.pending()}
        await asyncio.sleep(VISIBILITY_S + 5)
        return counts, place.dead(), place.report.recovered

    counts, dead, recovered = play(program, group={"foreign_workers": marked})
    assert counts == {3}, "by Redis"
    assert (dead, recovered) == (0, at_once)


@pytest.mark.parametrize("marked", [True, False])
def test_a_job_that_kills_whoever_runs_it_is_given_up_all_the_same(marked: bool) -> None:
    async def program(place: Place) -> int:
        place.add(b"poison")
        place.start("web-1", Habits(count=1, seconds=lambda _: 1e9))
        while not place.dead() and place.world.loop.now < 20 * VISIBILITY_S:
            await asyncio.sleep(5)
            place.kill("web-1", again_after_s=1)
        return place.dead()

    assert play(program, group={"foreign_workers": marked}) == 1


@pytest.mark.parametrize("marked", [True, False])
def test_reads_of_history_are_told_of_and_are_no_claims(marked: bool) -> None:
    async def program(place: Place) -> GroupReport:
        place.add(*jobs(5))
        place.start("web-1", Habits(count=5, seconds=lambda _: 20.0, history=1))
        for _ in range(20):
            await asyncio.sleep(7)
            place.kill("web-1", again_after_s=1)
        return place.report

    report = play(program, group={"foreign_workers": marked}, max_deliveries=50)
    assert (report.foreign_claims, report.rereads > 0) == (0, not marked)


# ---- observing


def test_an_observer_tells_false_alarms_and_the_timeout_that_would_have_had_none() -> None:
    async def program(place: Place) -> tuple[GroupReport, float]:
        place.add(*jobs(BATCH))
        reader = place.start("web-1", Habits(count=BATCH, seconds=lambda _: 4.0))
        began = place.world.loop.now
        await place.until(3 * VISIBILITY_S)
        return place.report, reader.done[-1][0] - began

    report, slowest_s = play(program, observe=True)
    assert (report.recovered, report.false_alarms) == (BATCH - 7, BATCH - 7)
    assert slowest_s <= report.slowest_ms / 1000 <= 1.15 * slowest_s


def test_an_observer_tells_of_a_dead_worker_once_and_of_no_false_alarm() -> None:
    async def program(place: Place) -> tuple[GroupReport, int]:
        place.add(*jobs(BATCH))
        place.start("web-1", Habits(count=BATCH, seconds=lambda _: 4.0))
        await asyncio.sleep(10)
        place.kill("web-1", again_after_s=20)
        await place.until(10 * VISIBILITY_S)
        return place.report, len(place.pending())

    report, pending = play(program, observe=True)
    assert (report.recovered, report.false_alarms) == (pending, 0)


# ---- whatever happens


def drawn_to_fit(draw: Random) -> Habits:
    """A reader that is done with what it reads well within the visibility timeout."""
    count = draw.choice([1, 2, 5, 10, 20])
    seconds = 0.7 * VISIBILITY_S / count * draw.uniform(0.3, 1)
    if draw.random() < 0.3:
        return Habits(count=1, at_once=4, reads_on=True, seconds=lambda _: min(seconds, VISIBILITY_S / 6))
    history, at_a_time = draw.choice([0, 0, 1, 2]), draw.choice([3, 1_000])
    return Habits(count, lambda _: seconds, draw.choice([1, 1, 2, 4]), history=history, history_count=at_a_time)


@pytest.mark.parametrize("sparing", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_nobody_is_named_whose_jobs_fit_and_all_jobs_end_whoever_dies(seed: int, sparing: bool) -> None:
    draw = Random(seed)

    async def program(place: Place) -> tuple[GroupReport, int]:
        names = [f"web-{number}" for number in range(draw.randint(1, 3))]
        for name in names:
            place.start(name, drawn_to_fit(draw))
        place.add(*jobs(draw.randint(20, 150)))
        while place.world.loop.now < 6 * VISIBILITY_S:
            await asyncio.sleep(draw.expovariate(1 / 25))
            if draw.random() < 0.9:
                place.kill(draw.choice(names), draw.choice([0.3, 2, 10, 40]))
            else:
                place.kill("reaper-1", 2)
        await place.until_all_is_done(40 * VISIBILITY_S)
        return place.report, len(place.pending()) + place.left()

    report, left = play(program, seed=seed, group={"spare_the_living": sparing}, max_deliveries=50)
    assert (report.from_living, report.foreign_claims, left) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(100, 104))
def test_who_reads_more_than_he_can_do_is_named_and_with_sparing_nothing_is_taken(seed: int) -> None:
    draw = Random(seed)
    readers, length, number = draw.randint(1, 3), draw.uniform(1.3, 4), draw.randint(60, 200)
    count = draw.choice([5, 10, 20, 50])
    habits = Habits(count=count, seconds=lambda _: min(0.45 * VISIBILITY_S, length * VISIBILITY_S / count))

    async def program(place: Place) -> GroupReport:
        for one in range(readers):
            place.start(f"web-{one}", habits)
        place.add(*jobs(number))
        await place.until(6 * VISIBILITY_S)
        return place.report

    robbing = play(program, seed=seed, max_deliveries=50)
    sparing = play(program, seed=seed, max_deliveries=50, group=SPARING)
    assert 0 < robbing.from_living <= robbing.recovered
    assert (sparing.recovered, sparing.from_living) == (0, 0)
