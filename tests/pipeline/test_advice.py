"""Does a recommended timeout keep its promise on executions that it has not seen? The text and the JSON of advice.

The recorded trace holds how long 5,500 of this project's own tests took on a busy machine: two thirds of them some
milliseconds, some a thousand times as long. ``recorded_durations.txt`` counts equal durations in ms.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from statistics import NormalDist, median
from typing import Any, NamedTuple

import pytest

from reaper.drill.trace import TokenTimes, generate_requests, plan_jobs
from reaper.pipeline.advice.bound import enough_for, upper_bound
from reaper.pipeline.advice.timeouts import (
    LONGEST_MS,
    Advice,
    Durations,
    GroupRecord,
    Promise,
    Verdict,
    Workers,
    advise,
)
from reaper.pipeline.advice.words import as_json, as_lines

RECORDED = Path(__file__).with_name("recorded_durations.txt")
_NORMAL = NormalDist()


class Shape(NamedTuple):
    """A distribution of durations: how to draw one, and the share that is longer."""

    draw: Callable[[Random], float]
    longer: Callable[[float], float]

    def quantile(self, share: float) -> float:
        """The value that a ``share`` of all durations exceeds."""
        low, high = 1e-6, 1e9
        while high > low * 1.000001:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.longer(middle) > share else (low, middle)
        return high


SHAPES = {
    "exponential": Shape(lambda r: r.expovariate(1), lambda t: math.exp(-t)),
    "lognormal": Shape(lambda r: r.lognormvariate(0, 1.6), lambda t: _NORMAL.cdf(-math.log(t) / 1.6)),
    "Pareto": Shape(lambda r: r.paretovariate(2.5), lambda t: max(t, 1) ** -2.5),
    "heavy Pareto": Shape(lambda r: r.paretovariate(1.5), lambda t: max(t, 1) ** -1.5),
    "uniform": Shape(lambda r: r.random(), lambda t: max(0.0, 1 - t)),
    "Weibull, heavy": Shape(lambda r: r.weibullvariate(1, 0.5), lambda t: math.exp(-(t**0.5))),
    "Weibull, light": Shape(lambda r: r.weibullvariate(1, 2), lambda t: math.exp(-(t**2))),
    "1 % take 100 times as long": Shape(
        lambda r: r.expovariate(1) * (100 if r.random() < 0.01 else 1),
        lambda t: 0.99 * math.exp(-t) + 0.01 * math.exp(-t / 100),
    ),
}


@pytest.mark.parametrize("count", [700, 3_000], ids=["by the tail", "by counts"])
@pytest.mark.parametrize("name", SHAPES)
def test_the_promise_holds_for_the_whole_distribution_that_a_sample_came_from(name: str, count: int) -> None:
    shape, share = SHAPES[name], 1 / 1_000
    bounds = []
    for seed in range(150):
        random = Random(f"{name} {count} {seed}")
        bounds.append(upper_bound(Counter(shape.draw(random) for _ in range(count)), share))
    broken = sum(shape.longer(bound) > share for bound in bounds)
    assert broken <= 13, "5 % are promised: more than 13 of 150 have a probability of 2 %"
    assert sum(map(shape.longer, bounds)) / len(bounds) < share
    assert median(bounds) < 5 * shape.quantile(share), "it is no answer to wait for ever"


def recorded() -> list[int]:
    counts = (map(int, line.split()) for line in RECORDED.read_text(encoding="utf-8").splitlines())
    return [ms for ms, count in counts for _ in range(count)]


def generated() -> list[int]:
    jobs = plan_jobs(generate_requests(3, count=4_000, rate=70), TokenTimes())
    return [max(1, round(job.duration.total_seconds() * 1000)) for job in jobs]


@pytest.mark.parametrize("one_in", [100, 1_000])
@pytest.mark.parametrize("trace", [recorded, generated])
def test_the_promise_holds_on_the_half_of_a_trace_that_was_held_out(
    trace: Callable[[], list[int]], one_in: int
) -> None:
    everything, shares = trace(), []
    half = len(everything) // 2
    for seed in range(50):
        Random(seed).shuffle(everything)
        seen, unseen = everything[:half], everything[half:]
        bound = upper_bound(Counter(seen), 1 / one_in)
        assert bound < 3 * max(everything)
        shares.append(sum(ms > bound for ms in unseen) / half)
    assert sum(shares) / len(shares) < 1 / one_in
    # A held-out half has chance of its own: twice the promise needs some luck in both halves.
    assert sum(share > 2 / one_in for share in shares) <= 5


def test_enough_is_what_a_promise_needs() -> None:
    assert [enough_for(1 / one_in) for one_in in (100, 1_000, 100_000)] == [299, 700, 29_958]


def test_a_bound_is_nearer_to_the_quantile_the_more_executions_are_known() -> None:
    """Of the whole numbers from 1 to a million 1 in 1,000 is beyond 999,000. Of so many, a formula takes over."""
    bounds = [upper_bound(Counter(range(1, 1_000_001, step)), 1 / 1_000) for step in (100, 10, 2, 1)]
    assert bounds == sorted(bounds, reverse=True)
    assert 999_000 < bounds[-1] < 999_060


def test_executions_that_were_cut_off_are_longer_than_any_bound() -> None:
    durations: Durations = Counter({10.0: 9_990, 20.0: 8, math.inf: 2})
    assert upper_bound(durations, 1 / 1_000) == 20
    assert math.isinf(upper_bound(durations + Counter({math.inf: 20}), 1 / 1_000))
    assert math.isinf(upper_bound(Counter({10.0: 999, math.inf: 1}), 1 / 1_000)), "the tail begins at the longest"


# ---- recommendations


def record(durations: Iterable[float] | Durations = (), **facts: Any) -> GroupRecord:
    facts = {"workers": Workers.PLAIN, "durations": Counter(durations)} | facts
    return GroupRecord(stream="{orders}:journal", group="billing", **facts)


def lines(advice: Advice) -> list[str]:
    return list(as_lines([advice]))


def test_workers_that_extend_get_the_floor_and_are_told_why() -> None:
    advice = advise(record([900_000] * 40, workers=Workers.EXTENDING, in_force_ms=30_000), Promise())
    assert (advice.verdict, advice.timeout_ms) == (Verdict.RECOMMENDED, 7_500)
    first, why = lines(advice)
    assert first == "orders/billing: visibility timeout 7.5 s (in force: 30 s)"
    assert why == (
        "  Its workers extend their executions, so long jobs need no longer timeout. This is the floor, 1.5 times "
        "--pause (5 s): with less, a worker that is silent for so long can lose its jobs."
    )
    assert advise(record([1], workers=Workers.EXTENDING), Promise(pause_ms=2_000)).timeout_ms == 3_000


@pytest.mark.parametrize(
    ("cut_off", "in_force_ms", "timeout_ms", "verdict"),
    [
        (1, 30_000, 30_000, Verdict.RECOMMENDED),
        (1, 2_000, 7_500, Verdict.RECOMMENDED),
        (9, 30_000, 60_000, Verdict.TOO_SHORT),
        (9, 2_000, 7_500, Verdict.TOO_SHORT),
        (9, None, 7_500, Verdict.TOO_SHORT),
    ],
)
def test_a_timeout_under_which_live_workers_lost_jobs_is_not_shortened(
    cut_off: int, in_force_ms: int | None, timeout_ms: int, verdict: Verdict
) -> None:
    facts = {"workers": Workers.EXTENDING, "cut_off": cut_off, "in_force_ms": in_force_ms}
    advice = advise(record([900_000] * 2_000, **facts), Promise())
    assert (advice.timeout_ms, advice.verdict) == (timeout_ms, verdict)


def test_plain_workers_get_the_bound_of_their_executions() -> None:
    advice = advise(record([*range(1, 10_001), *[41_234] * 5]), Promise())
    assert (advice.timeout_ms, advice.types) == (42_000, {})
    why = "the longest of 10,005 executions took 41.234 s, and with 95 % confidence at most 1 in 1,000 takes longer "
    assert advice.why == f"{why}than 41.234 s."
    few = advise(record(range(10_000, 11_000)), Promise())
    assert few.timeout_ms == 12_000
    assert few.why.endswith("Fewer than 2,995 do not show this, so a Pareto tail continues the longest tenth.")
    assert advise(record([900] * 3_000), Promise()).why.startswith("this is the floor, 1.5 times --pause (5 s).")


def test_few_executions_of_plain_workers_are_not_enough_to_say() -> None:
    advice = advise(record([100] * 699), Promise())
    assert (advice.verdict, advice.timeout_ms) == (Verdict.TOO_FEW, None)
    assert lines(advice) == [
        "orders/billing: not enough to say",
        "  699 executions in the lake, and a promise of 1 in 1,000 needs 700.",
    ]


def test_a_timeout_that_cuts_jobs_off_is_doubled() -> None:
    advice = advise(record([*[100] * 5_000, *[math.inf] * 40], cut_off=40, in_force_ms=20_000), Promise())
    assert (advice.verdict, advice.timeout_ms) == (Verdict.TOO_SHORT, 40_000)
    assert "40 jobs of 5,040 outlasted the timeout more than once, because they are slow or poison." in advice.why


def test_a_type_that_needs_longer_than_its_group_is_named() -> None:
    by_type = {"a\nb": Counter({50_000.0: 800}), "mail": Counter({20_000.0: 9_000_000}), "new": Counter({90_000.0: 3})}
    advice = advise(record(sum(by_type.values(), Counter()), by_type=by_type), Promise())
    assert (advice.timeout_ms, advice.types) == (20_000, {"a\nb": 50_000})
    assert lines(advice)[2:] == ["  Jobs of type a\\nb need 50 s: enqueue them with visibility_timeout."]


def test_no_timeout_is_longer_than_a_setting_can_be() -> None:
    assert advise(record([10**12] * 3_000), Promise()).timeout_ms == LONGEST_MS


def test_machines_get_the_promise_and_the_facts() -> None:
    told = as_json([advise(record([30_000] * 3_000, in_force_ms=5), Promise())], Promise())
    assert json.loads(json.dumps(told)) == {
        "promise": {"one_in": 1_000, "pause_ms": 5_000, "floor_ms": 7_500},
        "groups": [
            {
                "group": "orders/billing", "workers": "plain", "executions": 3_000, "longest_ms": 30_000,
                "cut_off": 0, "in_force_ms": 5, "verdict": "recommended", "timeout_ms": 30_000,
                "why": "the longest of 3,000 executions took 30 s, and with 95 % confidence at most 1 in 1,000 takes "
                "longer than 30 s.",
                "types": {},
            }
        ],
    }  # fmt: skip
