"""The advisor's arithmetic, without Spark: histograms, costs worked out by hand, and the choice."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reaper.pipeline.advice.histogram import Bin, Histogram, bin_of, merged, of_bins, of_durations
from reaper.pipeline.advice.model import (
    Cost,
    GroupRecord,
    Record,
    Weights,
    Workers,
    advise,
    advise_group,
    cost_of,
    round_up,
)

PLAIN = Weights(headroom=1.0)
durations = st.lists(st.integers(1, 10**8), min_size=1, max_size=60)

# ---- histograms


def test_a_histogram_keeps_counts_sums_and_the_longest_of_each_bin() -> None:
    found = of_durations([1_000, 1_000, 1_001, 2_000])
    assert found == Histogram((Bin(bin_of(1_000), 3, 3_001, 1_001), Bin(bin_of(2_000), 1, 2_000, 2_000)))
    assert (found.count, found.total_ms, found.longest_ms) == (4, 5_001, 2_000)


def test_nothing_is_a_histogram_too() -> None:
    nothing = of_durations([])
    assert (nothing.count, nothing.total_ms, nothing.longest_ms, nothing.quantile(0.95)) == (0, 0, 0, 0)


@given(durations)
def test_bins_are_in_order_and_narrow(values: list[int]) -> None:
    bins = of_durations(values).bins
    assert [each.number for each in bins] == sorted({bin_of(value) for value in values})
    assert all(each.longest_ms <= 2 ** ((each.number + 1) / 16) for each in bins)


@given(durations, durations)
def test_histograms_that_are_put_together_are_those_of_all_durations(some: list[int], more: list[int]) -> None:
    assert merged([of_durations(some), of_durations(more)]) == of_durations(some + more)
    assert of_bins(reversed(of_durations(some).bins)) == of_durations(some)


@given(durations, st.floats(0.01, 1))
def test_a_quantile_is_the_true_one_or_a_little_more(values: list[int], share: float) -> None:
    true = sorted(values)[math.ceil(share * len(values)) - 1]
    assert true <= of_durations(values).quantile(share) <= true * 2 ** (1 / 16) + 1


@given(durations, st.integers(1, 10**8))
def test_above_leaves_out_nothing_that_reaches(values: list[int], limit: int) -> None:
    above = of_durations(values).above(limit)
    assert above.count >= sum(value >= limit for value in values)
    assert above.count == 0 or above.longest_ms >= limit


# ---- costs


def kind(*held_ms: int, crashes: float = 0, silences: tuple[int, ...] = (), runs_ms: int = 0) -> Record:
    return Record(held=of_durations(held_ms), crashes=crashes, silences=of_durations(silences), silent_runs_ms=runs_ms)


def test_a_bare_worker_runs_a_slow_job_until_its_deliveries_are_used_up() -> None:
    jobs = [kind(100, 200, 4_000, crashes=2)]
    assert cost_of(3_000, jobs, Workers.BARE, PLAIN) == Cost(
        timeout_ms=3_000,
        waiting_s=6.0,  # two crashes, three seconds each
        twice_s=8.0,  # the one of four seconds: twice more
        taken=3,
        dead_letters=1,
        requests=0.0,
        total_s=6 + 8 + 60,
    )


def test_a_timeout_that_nothing_reaches_costs_only_what_crashes_wait() -> None:
    cost = cost_of(5_000, [kind(100, 4_000, crashes=2)], Workers.BARE, PLAIN)
    assert (cost.total_s, cost.taken, cost.dead_letters) == (10.0, 0, 0)


def test_tomorrows_slow_jobs_may_take_longer() -> None:
    cost = cost_of(4_700, [kind(4_000)], Workers.BARE, Weights(headroom=1.2))
    assert cost.dead_letters == 1
    assert cost_of(4_900, [kind(4_000)], Workers.BARE, Weights(headroom=1.2)).dead_letters == 0


def test_weights_say_what_things_are_worth() -> None:
    weights = Weights(rerun=0.5, dead_letter_s=10, max_deliveries=2, headroom=1.0)
    assert cost_of(1_000, [kind(4_000, crashes=1)], Workers.BARE, weights).total_s == 1 + 0.5 * 4 + 10


def test_an_extending_worker_loses_only_what_it_was_silent_about() -> None:
    jobs = [kind(100, 90_000, crashes=1, silences=(12_000, 40_000), runs_ms=6_000)]
    assert cost_of(20_000, jobs, Workers.EXTENDING, PLAIN, process_s=1_000) == Cost(
        timeout_ms=20_000,
        waiting_s=20.0,
        twice_s=3.0,  # one of the two silences, and half of what ran in them
        taken=1,
        dead_letters=0,
        requests=150.0,  # three in 20 s
        total_s=20 + 3 + 0.150,
    )


@given(durations, st.floats(0, 100), st.integers(100, 10**8), st.integers(100, 10**8))
def test_a_longer_timeout_never_takes_more_and_never_waits_less(
    values: list[int], crashes: float, one_ms: int, other_ms: int
) -> None:
    short_ms, long_ms = sorted((one_ms, other_ms))
    for workers in Workers:
        short, long = (
            cost_of(ms, [kind(*values, crashes=crashes, silences=tuple(values))], workers, PLAIN, process_s=10)
            for ms in (short_ms, long_ms)
        )
        assert short.taken >= long.taken
        assert short.twice_s >= long.twice_s
        assert short.dead_letters >= long.dead_letters
        assert short.waiting_s <= long.waiting_s
        assert short.requests >= long.requests


# ---- the choice


@given(durations, st.floats(1, 1_000), st.integers(100, 10**9))
def test_no_timeout_costs_bare_workers_less_than_the_best_of_the_curve(
    values: list[int], crashes: float, other_ms: int
) -> None:
    jobs = [kind(*values, crashes=crashes)]
    curve = advise(jobs, Workers.BARE, PLAIN).curve
    best = min(cost.total_s for cost in curve)
    assert cost_of(other_ms, jobs, Workers.BARE, PLAIN).total_s >= best * (1 - 1e-9)


def test_many_crashes_speak_for_a_short_timeout_and_few_for_a_long_one() -> None:
    held = [100] * 990 + [60_000] * 10
    few, many = (advise([kind(*held, crashes=n)], Workers.BARE, PLAIN).best.timeout_ms for n in (3, 10_000))
    assert (many, few) == (110, 61_000)


def test_where_nothing_crashed_one_crash_is_assumed() -> None:
    advice = advise([kind(*[1_000] * 300)], Workers.BARE, PLAIN)
    assert advice.best.timeout_ms == 1_100
    assert advice.best.waiting_s == 1.1
    assert advice.notes == ("no crash, or one, is recorded: one is assumed",)


def test_rules_of_thumb_and_the_configured_value_stand_beside_it() -> None:
    held = [1_000] * 96 + [2_000] * 3 + [10_000]
    advice = advise([kind(*held, crashes=5)], Workers.BARE, PLAIN, configured_ms=30_000)
    assert {name: cost.timeout_ms for name, cost in advice.rules.items()} == {
        "2 x p95": 2_000,
        "3 x worst": 30_000,
        "configured": 30_000,
    }
    assert advice.rules["2 x p95"].dead_letters == 4
    assert all(advice.best.total_s <= cost.total_s for cost in advice.rules.values())


def test_few_deliveries_are_noted() -> None:
    assert advise([kind(1, crashes=5)], Workers.BARE, PLAIN).notes == (
        "only 1 deliveries are known: the longest ones are probably not among them",
    )


def test_extending_workers_are_left_time_for_pauses() -> None:
    advice = advise([kind(*[100] * 300, crashes=50)], Workers.EXTENDING, Weights(pause_ms=4_000))
    assert (advice.curve[0].timeout_ms, advice.best.timeout_ms) == (6_000, 6_000)


def test_silences_that_were_seen_lengthen_the_timeout_of_extending_workers() -> None:
    jobs = [kind(*[100] * 300, crashes=2, silences=(9_000,) * 40, runs_ms=40 * 9_000)]
    assert advise(jobs, Workers.EXTENDING, PLAIN).best.timeout_ms == 9_100


def test_extensions_are_weighed_against_waiting() -> None:
    jobs = [kind(*[100] * 300, crashes=1)]
    busy = advise(jobs, Workers.EXTENDING, Weights(request_s=0.01), process_s=10_000_000).best
    idle = advise(jobs, Workers.EXTENDING, Weights(request_s=0.01), process_s=10).best
    assert idle.timeout_ms == 7_500
    # A second of timeout is a second of waiting; of 3e7 / T requests each is worth 0.01 s: the least is at root 3e5.
    assert math.sqrt(3e5) / 1.5 < busy.timeout_ms / 1000 < math.sqrt(3e5) * 1.5


def test_a_group_has_one_timeout_and_each_type_would_have_its_own() -> None:
    record = GroupRecord(
        stream="{orders}:journal",
        group="billing",
        workers=Workers.BARE,
        kinds=(
            Record(type="mail", held=of_durations([100] * 500), crashes=5),
            Record(type="report", held=of_durations([9_000] * 500), crashes=5),
        ),
    )
    found = advise_group(record, PLAIN)
    assert found.advice.best.timeout_ms == 9_100
    assert {name: advice.best.timeout_ms for name, advice in found.by_type.items()} == {"mail": 110, "report": 9_100}


@pytest.mark.parametrize(("ms", "written"), [(1, 10), (101, 110), (1_370, 1_400), (30_000, 30_000), (61_001, 62_000)])
def test_people_write_two_digits(ms: int, written: int) -> None:
    assert round_up(ms) == written
