"""When a pair is looked at: as often as ever, or, where it is calm, as seldom as another call tells."""

from collections.abc import Iterable

import anyio
import pytest

from reaper.recovery.looks import TOLD_PART, Looks
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [("asyncio", VIRTUAL_TIME)], ids=["virtual time"]),
]

SCAN_S, CALM_S = 1.0, 4.0
FULL = 30.0
"""When the next full scan is, in these tests."""


def after(scans: Iterable[tuple[int, bool]], looks: Looks | None = None) -> Looks:
    """Return the looks after these ones: how much each has found, and whether it was a full scan."""
    looks = looks or Looks(SCAN_S, CALM_S)
    for entries, was_full in scans:
        looks.found(entries, was_full=was_full)
    return looks


NOTHING, NOTHING_AT_ALL, SOMETHING = (0, False), (0, True), (1, False)
CALM = (NOTHING_AT_ALL, NOTHING, NOTHING_AT_ALL, NOTHING)


async def waited(looks: Looks, until: float = FULL) -> float:
    """Return for how long the next look is waited for."""
    began = anyio.current_time()
    await looks.wait(began + until)
    return round(anyio.current_time() - began, 4)


async def test_two_full_scans_that_found_nothing_and_all_looks_between_make_it_calm() -> None:
    looks = after(CALM)
    assert (looks.are_rare, looks.interval_s, looks.told_within_s()) == (True, CALM_S, CALM_S * TOLD_PART)


@pytest.mark.parametrize(
    "scans",
    [
        (NOTHING_AT_ALL, NOTHING, NOTHING),
        (NOTHING_AT_ALL, SOMETHING, NOTHING_AT_ALL),
        ((1, True), NOTHING, NOTHING_AT_ALL),
        (NOTHING_AT_ALL, NOTHING, (1, True)),
        (*CALM, SOMETHING),
        (*CALM, SOMETHING, NOTHING_AT_ALL, NOTHING),
    ],
    ids=["one", "a new one", "something before", "something now", "it was", "not for long enough again"],
)
async def test_else_it_is_not(scans: Iterable[tuple[int, bool]]) -> None:
    looks = after(scans)
    assert (looks.are_rare, looks.interval_s, looks.told_within_s()) == (False, SCAN_S, float("inf"))
    assert await waited(looks) == SCAN_S


async def test_it_is_calm_again_after_two_further_full_scans() -> None:
    assert after((*CALM, SOMETHING, NOTHING_AT_ALL, NOTHING, NOTHING_AT_ALL)).are_rare


@pytest.mark.parametrize("calm_s", [SCAN_S, SCAN_S / TOLD_PART])
async def test_where_little_is_to_be_had_nothing_is_calm(calm_s: float) -> None:
    looks = after(CALM, Looks(SCAN_S, calm_s))
    assert (looks.are_rare, await waited(looks)) == (False, SCAN_S)


async def test_a_calm_one_is_looked_at_a_calm_interval_after_the_last_look() -> None:
    assert await waited(after(CALM)) == CALM_S


async def test_it_waits_for_no_longer_than_for_the_full_scan() -> None:
    assert await waited(after(CALM), until=2.5) == 2.5


async def test_the_look_after_a_full_scan_is_as_early_as_ever() -> None:
    looks = after((*CALM, NOTHING_AT_ALL))
    assert (looks.are_rare, await waited(looks)) == (True, SCAN_S)


async def test_what_another_call_tells_counts_as_a_look() -> None:
    looks = after(CALM)
    async with anyio.create_task_group() as tasks:

        async def tell() -> None:
            for _ in range(5):
                await anyio.sleep(CALM_S * TOLD_PART)
                looks.told(is_pending=False)

        tasks.start_soon(tell)
        assert await waited(looks) == 5 * CALM_S * TOLD_PART + CALM_S


@pytest.mark.parametrize("by", [lambda looks: looks.told(is_pending=True), Looks.stir], ids=["another call", "itself"])
async def test_what_stirs_it_has_it_looked_at_at_once(by: object) -> None:
    looks = after(CALM)
    async with anyio.create_task_group() as tasks:

        async def stir() -> None:
            await anyio.sleep(2.2)
            by(looks)  # type: ignore[operator]

        tasks.start_soon(stir)
        assert await waited(looks) == 2.2
    assert not looks.are_rare
    looks.found(0, was_full=True)
    assert not looks.are_rare, "it has moved since the full scan before"


async def test_where_it_is_not_calm_what_another_call_tells_changes_nothing() -> None:
    looks = after((NOTHING_AT_ALL, NOTHING))
    looks.told(is_pending=False)
    assert (looks.are_rare, await waited(looks)) == (False, SCAN_S)
