"""The reports of a holder about third-party workers: readers with a backlog, slow ones, dead ones."""

import asyncio
from random import Random

import pytest

from reaper.replicas import GroupReport
from tests.simulation.foreign import VISIBILITY_S, Habits, Place, play

BATCH = 20


def jobs(number: int) -> list[bytes]:
    return [b"%d" % one for one in range(number)]


# ---- false recoveries


@pytest.mark.parametrize("at_once", [1, 5, BATCH])
def test_nobody_is_named_whose_jobs_fit_into_the_timeout(at_once: int) -> None:
    async def program(place: Place) -> GroupReport:
        place.add(*jobs(5 * BATCH))
        place.start("web-1", Habits(count=BATCH, seconds=lambda _: 1.3, at_once=at_once))
        await place.until(6 * VISIBILITY_S)
        return place.report

    report = play(program)
    assert (report.recovered, report.false_recoveries) == (0, 0)


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
    assert report.false_recoveries == 0


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
    assert report.false_recoveries == 0


# ---- counting


def test_two_reads_of_history_give_up_no_job_after_one_execution() -> None:
    """Redis counts them as deliveries, so the jobs are quarantined, and released one by one."""

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

    counts, dead, recovered = play(program)
    assert counts == {3}, "by Redis"
    assert (dead, recovered) == (0, 1)


def test_a_job_that_kills_whoever_runs_it_is_given_up_all_the_same() -> None:
    async def program(place: Place) -> int:
        place.add(b"poison")
        place.start("web-1", Habits(count=1, seconds=lambda _: 1e9))
        while not place.dead() and place.world.loop.now < 20 * VISIBILITY_S:
            await asyncio.sleep(5)
            place.kill("web-1", again_after_s=1)
        return place.dead()

    assert play(program) == 1


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
    """A reader that ends its jobs well within the visibility timeout."""
    count = draw.choice([1, 2, 5, 10, 20])
    seconds = 0.7 * VISIBILITY_S / count * draw.uniform(0.3, 1)
    if draw.random() < 0.3:
        return Habits(count=1, at_once=4, reads_on=True, seconds=lambda _: min(seconds, VISIBILITY_S / 6))
    history, at_a_time = draw.choice([0, 0, 1, 2]), draw.choice([3, 1_000])
    return Habits(count, lambda _: seconds, draw.choice([1, 1, 2, 4]), history=history, history_count=at_a_time)


@pytest.mark.parametrize("seed", range(4))
def test_all_jobs_end_whoever_dies(seed: int) -> None:
    draw = Random(seed)

    async def program(place: Place) -> int:
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
        return len(place.pending()) + place.left()

    assert play(program, seed=seed, max_deliveries=50) == 0


@pytest.mark.parametrize("seed", range(100, 104))
def test_a_consumer_that_settles_jobs_after_one_was_recovered_from_it_is_named(seed: int) -> None:
    lengths_s = {b"long": 1.5 * VISIBILITY_S, b"short": 0.8 * VISIBILITY_S}
    habits = Habits(count=1, at_once=4, reads_on=True, seconds=lambda payload: lengths_s[payload])

    async def program(place: Place) -> GroupReport:
        place.start("web-1", habits)
        place.add(*[b"long", b"short", b"short", b"short"] * 10)
        await place.until(8 * VISIBILITY_S)
        return place.report

    report = play(program, seed=seed, max_deliveries=50)
    assert report.false_recoveries > 0
    assert report.false_recoveries_of == {"web-1": report.false_recoveries}
