"""Ages as a full scan tells them: bounds that hold whatever happened, and an event that stays small."""

import math

from hypothesis import given
from hypothesis import strategies as st

from reaper.recovery.ages import Ages, at_least, below, take_together
from reaper.recovery.timers import BUCKET_MS, Cohort, Sight, Timers

VISIBILITY_MS = 30_000
AT = 1_000_000
"""When the scan ends."""


def dated(age_ms: int, *, seen_ago_ms: int = 0, timers: int = 1) -> Cohort:
    """Deliveries that are ``age_ms`` old at `AT` and were seen some time before."""
    return Cohort(AT - age_ms + VISIBILITY_MS, AT - seen_ago_ms, Sight.DATED, timers)


def overdue(timers: int = 1) -> Cohort:
    return Cohort(AT, AT, Sight.OVERDUE, timers)


@given(st.integers(0, 10**12))
def test_every_age_lies_between_powers_of_two(age_ms: int) -> None:
    assert at_least(age_ms) <= age_ms < below(age_ms)
    assert all(bound == 0 or math.log2(bound).is_integer() for bound in (at_least(age_ms), below(age_ms)))


@given(
    delivered=st.integers(0, 10**6),
    seen_after=st.integers(0, VISIBILITY_MS - 1),
    gone_after=st.integers(0, 10**6),
    told_after=st.integers(0, 10**6),
)
def test_the_bounds_of_what_is_gone_hold_whenever_it_went(
    delivered: int, seen_after: int, gone_after: int, told_after: int
) -> None:
    seen = delivered + seen_after
    gone = seen + gone_after
    timers, ages = Timers(), Ages(VISIBILITY_MS)
    timers.seen_ms = seen
    timers.arm(b"1-0", delivered + VISIBILITY_MS)
    timers.begin_sweep()
    assert timers.sweep(forgets=lambda cohort, _ids: ages.add_gone(cohort, gone + told_after))
    ((least, most),) = ages.gone
    assert most is not None
    assert least <= gone - delivered < most


def test_a_cohort_of_timers_shares_its_bounds() -> None:
    ages = Ages(VISIBILITY_MS)
    ages.add_gone(dated(20_000, seen_ago_ms=15_000, timers=7), AT)
    assert ages.as_data()["gone_ages"] == [[4_096, 32_768, 7]]


def test_what_is_told_is_in_order_and_open_ends_come_last() -> None:
    ages = Ages(VISIBILITY_MS)
    ages.add_gone(overdue(2), AT)
    ages.add_gone(dated(20_000), AT)
    ages.add_gone(dated(20_000, seen_ago_ms=19_500), AT)
    ages.scanned([overdue(), dated(9_000, timers=2), dated(3)], AT, oldest_ms=40_000)
    assert ages.as_data() == {
        "pending": 4,
        "oldest_idle_ms": 40_000,
        "pending_ages": [[2, 1], [8_192, 2], [16_384, 1]],
        "gone": 4,
        "gone_ages": [[256, 32_768, 1], [16_384, 32_768, 1], [16_384, None, 2]],
    }


def test_the_oldest_is_a_dated_one_where_nothing_is_overdue() -> None:
    ages = Ages(VISIBILITY_MS)
    ages.scanned([dated(9_000), dated(12_345)], AT, oldest_ms=0)
    assert ages.oldest_ms == 12_345


def test_what_is_pending_is_told_as_of_the_last_scan() -> None:
    ages = Ages(VISIBILITY_MS)
    ages.scanned([dated(5_000, timers=3)], AT, oldest_ms=0)
    ages.scanned([dated(100)], AT, oldest_ms=0)
    assert ages.as_data()["pending_ages"] == [[64, 1]]


def test_what_nobody_knows_the_age_of_has_none_and_those_of_one_age_are_counted_together() -> None:
    ages = Ages(VISIBILITY_MS)
    unsure = Cohort(AT, AT, Sight.UNSURE, 3)
    ages.scanned([unsure, dated(5_000, timers=2), unsure, dated(6_000)], AT, oldest_ms=0)
    assert ages.as_data()["pending_ages"] == [[0, 6], [4_096, 3]]


def test_what_is_gone_is_told_once_and_what_is_pending_each_time() -> None:
    stream, retry = Ages(VISIBILITY_MS), Ages(VISIBILITY_MS)
    for ages, age_ms in ((stream, 100), (retry, 3_000)):
        ages.add_gone(dated(age_ms), AT)
        ages.scanned([dated(age_ms)], AT, oldest_ms=0)
    first, second = take_together([stream, retry]), take_together([stream, retry])
    assert first.as_data() == {
        "pending": 2,
        "oldest_idle_ms": 3_000,
        "pending_ages": [[64, 1], [2_048, 1]],
        "gone": 2,
        "gone_ages": [[64, below(100 + BUCKET_MS), 1], [2_048, below(3_000 + BUCKET_MS), 1]],
    }
    assert second.as_data() == first.as_data() | {"gone": 0, "gone_ages": []}


@given(st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**8)), max_size=300))
def test_an_event_stays_small_however_many_deliveries_went(went: list[tuple[int, int]]) -> None:
    ages = Ages(VISIBILITY_MS)
    for age_ms, seen_ago_ms in went:
        ages.add_gone(dated(age_ms, seen_ago_ms=seen_ago_ms), AT)
    bits = (10**8).bit_length() + 1
    assert len(ages.as_data()["gone_ages"]) <= bits * bits // 2 + bits
    assert ages.as_data()["gone"] == len(went)
