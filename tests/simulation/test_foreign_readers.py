"""What a leader tells of workers that are not ours, and does: readers with a backlog, slow ones, dead ones."""

import asyncio

import pytest

from reaper.replicas import GroupReport
from tests.simulation.foreign import VISIBILITY_S, Habits, Place, play

BATCH = 20


def jobs(number: int) -> list[bytes]:
    return [b"%d" % one for one in range(number)]


# ---- deliveries taken from the living


def test_who_holds_a_backlog_for_longer_than_the_timeout_is_named() -> None:
    async def program(place: Place) -> GroupReport:
        place.add(*jobs(BATCH))
        place.start("web-1", Habits(count=BATCH, seconds=lambda _: 4.0))
        await place.until(VISIBILITY_S + 10)
        return place.report

    report = play(program)
    assert report.recovered == BATCH - 7, "it has settled the others"
    assert report.from_living == report.recovered
    assert report.living == {"web-1": report.from_living}


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
