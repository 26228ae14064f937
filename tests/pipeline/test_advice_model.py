"""The advisor's arithmetic, without Spark: histograms, tails, costs worked out by hand, and the choice."""

import math
import tomllib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reaper.pipeline.advice.choice import advise, advise_group, round_up
from reaper.pipeline.advice.costs import OfBare, OfExtending
from reaper.pipeline.advice.crashes import OFTEN_S, SELDOM_S, crash_rate
from reaper.pipeline.advice.drift import drift
from reaper.pipeline.advice.families import Lognormal, Stretched, possible
from reaper.pipeline.advice.fragment import as_toml
from reaper.pipeline.advice.histogram import Bin, Histogram, bin_of, merged, of_bins, of_durations
from reaper.pipeline.advice.model import (
    LONGEST_MS,
    SHORTEST_MS,
    Advice,
    Cost,
    GroupRecord,
    Record,
    Verdict,
    Weights,
    Workers,
)
from reaper.pipeline.advice.outlook import Outlook, outlook
from reaper.pipeline.advice.tail import Excesses, Pareto, Tail, pareto_tails
from reaper.settings import GroupSettings

PLAIN = Weights()
NOTHING = Histogram()
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


@given(durations, st.floats(1, 10))
def test_a_scaled_histogram_is_that_of_longer_durations(values: list[int], factor: float) -> None:
    scaled = of_durations(values).scaled(factor)
    assert scaled.count == len(values)
    assert scaled.longest_ms == round(max(values) * factor)
    assert scaled.total_ms == pytest.approx(sum(values) * factor, rel=0.01, abs=len(values))


# ---- how often workers die


@pytest.mark.parametrize(("crashes", "work_s"), [(100, 20_000), (3, 600), (10_000, 700), (7, 1e9)])
def test_crashes_that_were_seen_are_expected_again(crashes: int, work_s: float) -> None:
    rate = crash_rate(crashes, work_s)
    assert rate.mean * work_s == pytest.approx(crashes, rel=0.01)
    middle = crashes / work_s
    assert rate.quantile(0.05) < middle < rate.quantile(0.95)
    assert rate.quantile(0.95) / rate.quantile(0.05) < math.exp(4.2 / math.sqrt(crashes))


def test_where_none_was_seen_the_more_work_the_fewer_are_expected() -> None:
    rates = [crash_rate(0, work_s).mean for work_s in (1, 100, 10_000, 1_000_000)]
    assert rates == sorted(rates, reverse=True)
    assert 1 / SELDOM_S < rates[-1] < rates[0] < 1 / OFTEN_S
    assert rates[2] < 0.5 / 10_000  # not one: ten thousand seconds went well


# ---- tails


def fit(excesses: Excesses, cut_off: Excesses = ()) -> list[Pareto]:
    """Generalized Pareto tails by themselves, weighed."""
    scored = list(pareto_tails(excesses, cut_off))
    best = max(score for score, _ in scored)
    total = sum(math.exp(score - best) for score, _ in scored)
    return [tail.weighing(math.exp(score - best) / total) for score, tail in scored]


@pytest.mark.parametrize(
    ("draw", "survival"),
    [
        (lambda random: random.weibullvariate(1, 2), lambda s: math.exp(-(s**2))),
        (lambda random: random.weibullvariate(1, 0.7), lambda s: math.exp(-(s**0.7))),
        (lambda random: random.paretovariate(2.5), lambda s: s**-2.5),
        (lambda random: random.lognormvariate(0, 0.5), lambda s: math.erfc(math.log(s) / 0.5 / math.sqrt(2)) / 2),
    ],
    ids=["falls faster than exponentially", "stretched", "Pareto", "lognormal"],
)
def test_beyond_what_was_seen_the_right_family_is_found(
    draw: Callable[[Random], float], survival: Callable[[float], float]
) -> None:
    """Where one in 20,000 is longer, of records of 5,000; what is expected in the middle one of them."""
    place_ms = next(ms for ms in range(2_000, 100_000, 10) if survival(ms / 1000) < 1 / 20_000)
    found = sorted(
        outlook(of_durations([round(1_000 * draw(random)) for _ in range(5_000)]), NOTHING).reach(place_ms)[0]
        for random in map(Random, range(7))
    )
    assert 0.4 < found[3] / survival(place_ms / 1000) < 2.5


def test_a_tail_that_is_drawn_is_one_of_those_that_it_stands_for() -> None:
    random, tail = Random(10), Stretched(1.0, 0.7, 40.0, 3e3, 500.0)
    drawn = [tail.drawn(random).survival(900) for _ in range(2_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(tail.survival(900), rel=0.03)
    assert max(drawn) > 2 * min(drawn)


def test_of_none_that_was_seen_there_is_no_tail() -> None:
    assert possible(100, []) == []


@pytest.mark.parametrize(
    ("xi", "draw"),
    [
        (-1.0, lambda random: random.uniform(0, 500)),
        (0.0, lambda random: random.expovariate(1 / 300)),
        (0.4, lambda random: 200 * (random.paretovariate(2.5) - 1)),
    ],
)
def test_the_shape_of_a_tail_is_found(xi: float, draw: Callable[[Random], float]) -> None:
    random = Random(4)
    tails = fit([(draw(random), 1) for _ in range(2_000)])
    assert sum(tail.weight for tail in tails) == pytest.approx(1)
    assert sum(tail.weight * tail.xi for tail in tails) == pytest.approx(xi, abs=0.08)


def test_few_data_leave_more_shapes_possible_than_many() -> None:
    random = Random(5)

    def width(count: int) -> float:
        tails = fit([(random.expovariate(1), 1) for _ in range(count)])
        mean = sum(tail.weight * tail.xi for tail in tails)
        return math.sqrt(sum(tail.weight * (tail.xi - mean) ** 2 for tail in tails))

    assert width(15) > 2 * width(1_500)


def test_what_was_cut_off_counts_for_what_is_longer() -> None:
    """All that would have taken longer than 1 s was cut off there: the tail is the same, not one that ends at 1 s."""
    random = Random(6)
    drawn = [random.expovariate(1) for _ in range(4_000)]
    seen = [(each, 1.0) for each in drawn if each < 1]
    tails = fit(seen, [(1.0, len(drawn) - len(seen))])
    assert sum(tail.weight * tail.survival(3.0) for tail in tails) == pytest.approx(math.exp(-3), rel=0.6)
    assert sum(tail.weight * tail.survival(3.0) for tail in fit(seen)) < 0.1 * math.exp(-3)


@pytest.mark.parametrize(
    "tail",
    [
        Pareto(1, -0.65 / 1_000, -1.3),
        Pareto(1, -0.25 / 1_000, -0.5),
        Pareto(1, 0.001 / 1_000, 0.001),
        Pareto(1, 0.3 / 1_000, 0.3),
        Stretched(1, 5, 80, 80 * 30_000.0**5, 1_000),
        Stretched(1, 0.7, 40, 40 * 200.0**0.7, 1_000),
        Stretched(1, 0.02, 100, 0.55, 1_000),
        Lognormal(1, math.log(1_500), 0.5, 1_000, 0.791297),
        Lognormal(1, math.log(30_000), 0.2, 1_000, 1.0),
    ],
)
@pytest.mark.parametrize("timeout_ms", [500, 1_000, 1_100, 5_000, 25_000])
def test_those_that_reach_a_timeout_are_held_for_as_long_as_the_tail_says(tail: Tail, timeout_ms: int) -> None:
    """Be they near, or in a group far apart: the integral over the survival."""
    expected = Outlook((), 1_000, 40_000, 0.25, (tail,), 50.0)
    excess = max(0.0, timeout_ms - 1_000.0)
    total_ms, step = 0.0, 10.0
    while excess < 2e6:
        total_ms += tail.survival(excess + step / 2) * step
        excess, step = excess + step, max(step, excess / 200)
    share, held_ms = expected.reach(timeout_ms)
    reached = tail.survival(max(0.0, timeout_ms - 1_000.0))
    assert tail.survival(0) == pytest.approx(1, abs=0.01)
    assert share == pytest.approx(0.25 * reached, rel=1e-4)
    assert held_ms == pytest.approx(0.25 * (max(timeout_ms, 1_000) * reached + total_ms), rel=0.02)


# ---- the outlook


@given(st.lists(st.integers(1, 10**6), min_size=30, max_size=80), st.integers(1, 10**7), st.integers(1, 10**7))
def test_the_longer_a_timeout_the_fewer_reach_it(values: list[int], one_ms: int, other_ms: int) -> None:
    expected = outlook(of_durations(values), NOTHING)
    short, long = sorted((one_ms, other_ms))
    assert 1 + 1e-9 >= expected.reach(short)[0] >= expected.reach(long)[0] - 1e-9
    assert expected.reach(0)[0] == pytest.approx(1)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=9))
def test_of_a_few_one_more_is_expected_to_be_longer_than_all_of_them(values: list[int]) -> None:
    expected = outlook(of_durations(values), NOTHING)
    assert expected.reach(max(values) * 1.0001)[0] == pytest.approx(1 / (len(values) + 1), rel=0.01)
    assert expected.reach(100 * max(values))[0] > 0


def test_ages_that_were_cut_off_are_no_durations() -> None:
    """Kaplan and Meier by hand: of ten, four took 1 s, three were cut off at 2 s, three took 4 s."""
    expected = outlook(of_durations([1_000] * 4 + [4_000] * 3), of_durations([2_000] * 3))
    assert expected.reach(1_000)[0] == pytest.approx(1)
    assert expected.reach(1_001)[0] == pytest.approx(0.6, rel=0.12)
    only_short = outlook(of_durations([1_000] * 4), of_durations([2_000] * 6))
    assert only_short.reach(2_000)[0] == pytest.approx(0.6)


def test_a_few_slow_jobs_among_many_others_are_not_smoothed_away() -> None:
    random = Random(8)
    held = [round(300 * random.lognormvariate(0, 0.5)) for _ in range(300)] + [30_000, 33_000]
    expected = outlook(of_durations(held), NOTHING)
    assert expected.reach(20_000)[0] >= 1 / 302
    assert 0 < expected.reach(60_000)[0] < 1 / 302


def test_what_is_drawn_varies_around_what_was_recorded() -> None:
    random = Random(9)
    held = of_durations([round(1_000 * random.expovariate(1)) + 1 for _ in range(500)])
    expected = outlook(held, NOTHING)
    shares = [expected.drawn(random, 500).reach(2_000)[0] for _ in range(200)]
    deviation = math.sqrt(sum((share - expected.reach(2_000)[0]) ** 2 for share in shares) / len(shares))
    assert deviation == pytest.approx(math.sqrt(0.135 * 0.865 / 500), rel=0.3)


# ---- costs


def counted(*held_ms: int, beyond: float = 0.0) -> Outlook:
    """Exactly these again, and nothing longer."""
    share = 1 / len(held_ms)
    body = tuple((ms, share, share * ms) for ms in sorted(held_ms))
    return Outlook(body, max(held_ms), max(held_ms), beyond, (Pareto(1.0, 1.0, 0.1),), 1.0)


def test_a_bare_worker_runs_a_slow_job_until_its_deliveries_are_used_up() -> None:
    cost = OfBare(counted(100, 200, 4_000), 3, PLAIN).cost(3_000, crashes=2)
    # Two crashes, three seconds each; the job of four seconds runs twice more, and is given up.
    told = (cost.waiting_s, cost.twice_s, cost.taken, cost.dead_letters, cost.requests, cost.total_s)
    assert told == pytest.approx((6, 8, 3, 1, 0, 6 + 8 + 60))


def test_a_timeout_that_nothing_reaches_costs_only_what_crashes_wait() -> None:
    cost = OfBare(counted(100, 4_000), 2, PLAIN).cost(5_000, crashes=2)
    assert (cost.total_s, cost.taken, cost.dead_letters) == (10.0, 0, 0)


def test_weights_say_what_things_are_worth() -> None:
    weights = Weights(rerun=0.5, dead_letter_s=10, max_deliveries=2)
    assert OfBare(counted(4_000), 1, weights).cost(1_000, 1).total_s == pytest.approx(1 + 0.5 * 4 + 10)


def test_an_extending_worker_loses_only_what_it_was_silent_about() -> None:
    expected = OfExtending([(of_durations([12_000, 40_000]), 3_000.0)], 1_000, PLAIN)
    assert expected.cost(20_000, crashes=1) == Cost(
        timeout_ms=20_000,
        waiting_s=20.0,
        twice_s=3.0,  # one of the two silences, and half of what ran in them
        taken=1,
        dead_letters=0,
        requests=150.0,  # three in 20 s
        total_s=20 + 3 + 0.150,
    )


# ---- the choice


def kind(*held_ms: int, crashes: float = 0, silences: tuple[int, ...] = (), runs_ms: int = 0) -> Record:
    return Record(held=of_durations(held_ms), crashes=crashes, silences=of_durations(silences), silent_runs_ms=runs_ms)


def group(*kinds: Record, workers: Workers = Workers.BARE, **facts: Any) -> GroupRecord:
    return GroupRecord(stream="{orders}:journal", group="billing", workers=workers, kinds=kinds, **facts)


def exponential(count: int, mean_ms: float = 1_000, seed: int = 1) -> list[int]:
    random = Random(seed)
    return [1 + round(random.expovariate(1 / mean_ms)) for _ in range(count)]


def advised(*held_ms: int, crashes: float = 0, weights: Weights = PLAIN, **facts: Any) -> Advice:
    return advise(group(kind(*held_ms, crashes=crashes), **facts), weights)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.floats(1, 300), st.floats(1, 10**7))
def test_no_timeout_is_expected_to_cost_less(seed: int, crashes: float, other_ms: float) -> None:
    expected = OfBare(outlook(of_durations(exponential(400, seed=seed)), NOTHING), 400, PLAIN)
    best = expected.cost(expected.best(crashes), crashes)
    assert expected.cost(max(100.0, other_ms), crashes).total_s >= best.total_s * (1 - 2e-2)


def test_many_crashes_speak_for_a_short_timeout_and_few_for_a_long_one() -> None:
    held = [100] * 990 + [60_000] * 10
    few, many = (advised(*held, crashes=n).best.timeout_ms for n in (3, 10_000))
    assert many == 110
    assert few > 60_000


def test_the_same_record_has_the_same_advice() -> None:
    held = exponential(400)
    assert advised(*held, crashes=3) == advised(*reversed(held), crashes=3)


def test_rules_of_thumb_and_the_configured_value_stand_beside_it() -> None:
    held = [1_000] * 288 + [2_000] * 9 + [10_000] * 3
    advice = advised(*held, crashes=5, configured_ms=30_000)
    assert {name: cost.timeout_ms for name, cost in advice.rules.items()} == {
        "2 x p95": 2_000,
        "3 x worst": 30_000,
        "configured": 30_000,
    }
    assert advice.rules["2 x p95"].dead_letters == pytest.approx(12, rel=0.2)
    assert all(advice.best.total_s <= 1.05 * cost.total_s for cost in advice.rules.values())


def test_the_more_is_known_the_narrower_are_the_intervals() -> None:
    few, many = (advised(*exponential(count), crashes=count / 100) for count in (400, 8_000))
    for advice in (few, many):
        assert advice.verdict is Verdict.ADVISED
        assert advice.timeout_ms.high is not None
        assert advice.cost_s.high is not None
        assert advice.timeout_ms.low <= advice.best.timeout_ms <= 1.03 * advice.timeout_ms.high
        assert advice.cost_s.low <= advice.best.total_s <= advice.cost_s.high
    wide = [math.log((each.timeout_ms.high or math.inf) / each.timeout_ms.low) for each in (few, many)]
    assert wide[0] > 2 * wide[1]  # about the root of twenty


def test_below_what_can_be_said_nothing_is_said() -> None:
    advice = advised(*exponential(50))
    assert advice.verdict is Verdict.TOO_FEW
    assert (advice.timeout_ms.high, advice.cost_s.high) == (None, None)
    assert advice.notes[0].startswith("not enough to say: of 50 deliveries, a kind of job that is one in a hundred is")
    assert "probability of 61 %" in advice.notes[0]
    assert advised(*exponential(300), crashes=1).verdict is Verdict.ADVISED


def test_where_nothing_crashed_it_says_what_it_expects() -> None:
    (note,) = advised(*[1_000] * 400).notes
    assert note.startswith("no crash is recorded in 400 s of work: 0.")


def test_tomorrows_slow_jobs_may_take_longer() -> None:
    held = exponential(2_000)
    plain, roomy = (
        advised(*held, crashes=20, weights=Weights(headroom=headroom)).best.timeout_ms for headroom in (1.0, 1.5)
    )
    assert 1.2 * plain < roomy < 1.7 * plain


def test_extending_workers_are_left_time_for_pauses() -> None:
    record = group(kind(*[100] * 300, crashes=50), workers=Workers.EXTENDING)
    advice = advise(record, Weights(pause_ms=4_000))
    assert (advice.curve[0].timeout_ms, advice.best.timeout_ms) == (6_000, 6_000)
    assert advice.verdict is Verdict.ADVISED


def test_silences_that_were_seen_lengthen_the_timeout_of_extending_workers() -> None:
    jobs = kind(*[100] * 300, crashes=2, silences=(9_000,) * 40, runs_ms=40 * 9_000)
    assert advise(group(jobs, workers=Workers.EXTENDING), PLAIN).best.timeout_ms == 9_100


def test_an_advice_that_its_own_table_calls_dear_says_why() -> None:
    jobs = kind(*[100] * 300, crashes=50)
    advice = advise(group(jobs, workers=Workers.EXTENDING), PLAIN)
    assert advice.rules["2 x p95"].total_s < advice.best.total_s
    assert any(f"{PLAIN.floor_ms / 1000:g} s is the floor, 1.5 times --pause" in note for note in advice.notes)
    bare = advise(group(jobs, workers=Workers.BARE), PLAIN)
    assert not any("floor" in note for note in bare.notes)


def test_extensions_are_weighed_against_waiting() -> None:
    def best(process_s: float) -> int:
        record = group(kind(*[100] * 300, crashes=1), workers=Workers.EXTENDING, process_s=process_s)
        return advise(record, Weights(request_s=0.01)).best.timeout_ms

    assert best(10) == 7_500
    # A second of timeout is a second of waiting; of 3e7 / T requests each is worth 0.01 s: the least is at root 3e5.
    assert math.sqrt(3e5) / 1.5 < best(10_000_000) / 1000 < math.sqrt(3e5) * 1.5


def test_a_group_has_one_timeout_and_each_type_would_have_its_own() -> None:
    mail = Record(type="mail", held=of_durations(exponential(500, 100)), crashes=5)
    report = Record(type="report", held=of_durations([9_000 + each for each in exponential(500, 100)]), crashes=5)
    found = advise_group(group(mail, report), PLAIN)
    assert set(found.by_type) == {"mail", "report"}
    assert found.by_type["mail"].best.timeout_ms < 4_000
    assert 9_500 < found.by_type["report"].best.timeout_ms < 14_000
    assert 9_500 < found.advice.best.timeout_ms < 14_000


@pytest.mark.parametrize(
    ("ms", "written"),
    [(1, 10), (101, 110), (1_370, 1_380), (2_010, 2_050), (30_000, 30_000), (61_001, 62_000), (100_001, 102_000)],
)
def test_people_write_few_digits(ms: int, written: int) -> None:
    assert round_up(ms) == written


@given(st.integers(500, 10**9))
def test_writing_it_shorter_makes_it_longer_by_little(ms: int) -> None:
    assert ms <= round_up(ms) <= 1.026 * ms


# ---- drift


def test_halves_that_differ_are_noticed_and_chance_is_not() -> None:
    one, other = (of_durations(exponential(1_000, seed=seed)) for seed in (1, 2))
    assert drift(one, other) is None
    factor = drift(one, other.scaled(2))
    assert factor == pytest.approx(2, rel=0.15)
    back = drift(one.scaled(2), other)
    assert back == pytest.approx(0.5, rel=0.15)
    assert drift(of_durations([1_000] * 40), of_durations([9_000] * 40)) is None


def test_an_advice_on_durations_that_grow_is_for_the_later_half_and_as_much_longer_again() -> None:
    earlier, later = exponential(1_000), exponential(1_000, 2_000, seed=2)
    halves = (of_durations(earlier), of_durations(later))
    steady = advised(*earlier, *later, crashes=20)
    growing = advised(*earlier, *later, crashes=20, halves=halves)
    assert steady.drift is None
    assert growing.drift == pytest.approx(2, rel=0.15)
    assert growing.best.timeout_ms > 1.5 * steady.best.timeout_ms
    assert any("later half were held" in note and "that to go on" in note for note in growing.notes)
    shrinking = advised(*earlier, *later, crashes=20, halves=halves[::-1])
    assert shrinking.best.timeout_ms == steady.best.timeout_ms
    assert any("the advice is for both" in note for note in shrinking.notes)


def test_the_advice_on_a_trace_that_drifts_holds_for_what_comes_next() -> None:
    """Durations double from the begin of the first half to its end, and grow on at that pace in the second."""
    random = Random(12)
    count, crash_s = 4_000, 2_000.0

    def drawn(place: float) -> int:
        return 1 + round(1_000 * 2 ** (place / count) * random.expovariate(1))

    seen, unseen = [drawn(n) for n in range(count)], [drawn(count + n) for n in range(count)]
    halves = (of_durations(seen[: count // 2]), of_durations(seen[count // 2 :]))
    crashes = sum(seen) / 1000 / crash_s
    blind, warned = advised(*seen, crashes=crashes), advised(*seen, crashes=crashes, halves=halves)
    truth = OfBare(counted(*unseen), count, PLAIN)
    cost = {name: truth.cost(each.best.timeout_ms, sum(unseen) / 1000 / crash_s).total_s for name, each in
            (("blind", blind), ("warned", warned))}  # fmt: skip
    least = min(truth.cost(ms, sum(unseen) / 1000 / crash_s).total_s for ms in range(5_000, 80_000, 500))
    assert warned.drift is not None
    assert cost["warned"] < 1.3 * least
    assert cost["warned"] < cost["blind"]


# ---- timeouts that cut off what would have to be known


def watched_by_a_leader(held_ms: Sequence[int], timeout_ms: int, crashed: int) -> GroupRecord:
    """What is known of foreign workers at a timeout: bounds from scans, and stalls, three of each slow job."""
    done = [2 ** math.ceil(math.log2(ms)) for ms in held_ms if ms < timeout_ms]
    slow = sum(ms >= timeout_ms for ms in held_ms)
    kinds = Record(held=of_durations(done), crashes=crashed, cut_off=of_durations([timeout_ms] * slow))
    return group(kinds, bounded=True, configured_ms=timeout_ms, doubtful=3 * slow + crashed)


@pytest.mark.parametrize("timeout_ms", [300, 1_000, 8_000, 20_000, 29_000])
@pytest.mark.parametrize("crashed", [0, 5])
def test_no_advice_stays_at_a_timeout_that_dead_letters_done_jobs(timeout_ms: int, crashed: int) -> None:
    """Jobs of up to 30 s, and none or a few of them crashed. Each advice is followed until it says the same again."""
    random = Random(timeout_ms)
    held_ms = [random.randint(100, 30_000) for _ in range(3_000)]
    followed = [timeout_ms]
    while followed[-1] not in followed[:-1] and len(followed) < 20:
        record = watched_by_a_leader(held_ms, followed[-1], crashed)
        followed.append(advise(record, PLAIN).best.timeout_ms)
    assert followed[-1] in followed[:-1], followed
    assert 30_000 <= followed[-1] <= 100_000, followed


def test_a_timeout_that_many_reach_is_too_short_to_tell() -> None:
    random = Random(3)
    held_ms = [random.randint(100, 30_000) for _ in range(3_000)]
    advice = advise(watched_by_a_leader(held_ms, 8_000, 0), PLAIN)
    assert advice.verdict is Verdict.TOO_SHORT
    assert advice.best.timeout_ms >= 16_000
    assert advice.timeout_ms.high is None
    assert any("too short to tell" in note and "raise it to at least" in note for note in advice.notes)
    assert advise(watched_by_a_leader(held_ms, 29_500, 0), PLAIN).verdict is Verdict.ADVISED


def test_where_every_job_was_cut_off_the_timeout_is_raised_all_the_same() -> None:
    advice = advise(watched_by_a_leader([9_000] * 100, 5_000, 0), PLAIN)
    assert advice.verdict is Verdict.TOO_SHORT
    assert advice.best.timeout_ms >= 10_000


# ---- what nobody had thought of


@pytest.mark.parametrize("workers", list(Workers))
@pytest.mark.parametrize("values", [[0], [0] * 400, [0] * 400 + [5_000]])
def test_jobs_that_take_no_time_have_advice_too(values: list[int], workers: Workers) -> None:
    """Also as one type among others, and where those of the earlier half had taken some."""
    none, some = Record(type="none", held=of_durations(values)), Record(type="some", held=of_durations([700] * 400))
    halves = some.held, none.held
    record = GroupRecord(stream="s", group="g", workers=workers, kinds=(none, some), halves=halves)
    advice = advise_group(record, Weights())
    assert set(advice.by_type) == {"none", "some"}
    assert all(each.best.timeout_ms >= SHORTEST_MS for each in (advice.advice, *advice.by_type.values()))


def test_no_pause_is_so_short_that_less_than_the_shortest_timeout_is_advised() -> None:
    record = GroupRecord(
        stream="s", group="g", workers=Workers.EXTENDING, kinds=(Record(held=of_durations([1] * 400)),)
    )
    assert advise(record, Weights(pause_ms=10)).best.timeout_ms >= SHORTEST_MS


@pytest.mark.parametrize("configured_ms", [None, LONGEST_MS])
def test_no_advice_is_longer_than_a_setting_may_be(configured_ms: int | None) -> None:
    year_ms = 365 * 86_400_000
    kind = Record(held=of_durations([1] * 400 + [year_ms] * 20), cut_off=of_durations([year_ms] * 30))
    record = GroupRecord(
        stream="s", group="g", workers=Workers.BARE, kinds=(kind,), doubtful=400, configured_ms=configured_ms
    )
    advice = advise_group(record, Weights(headroom=100))
    assert advice.advice.best.timeout_ms <= LONGEST_MS
    (group,) = tomllib.loads(as_toml([advice], Weights()))["groups"]
    assert GroupSettings(**group).visibility_timeout
