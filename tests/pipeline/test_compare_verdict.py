"""The verdicts of a comparison about its numbers, calculated by hand, without a drill."""

from collections.abc import Mapping
from typing import Any

import pytest

from reaper.drill.faults import parse_fault
from reaper.pipeline.compare.figures import FIGURES, Measured, measure
from reaper.pipeline.compare.findings import conclude
from reaper.pipeline.compare.page import write_page
from reaper.pipeline.compare.play import Drills, Plan, PlayedDrill
from reaper.pipeline.compare.scenarios import FAULT_AT_S, IDLE, MODES, SCENARIOS, Scenario, choose_scenarios, moved
from reaper.pipeline.compare.verdict import Verdict, headline, judge, write_all
from workers.protocol.errors import ConfigurationError

CRASH = SCENARIOS["one-crash"]

# ---- reports


def report(**changes: Any) -> dict[str, Any]:
    """A drill's report, as far as it is read."""
    latency = {"p50": 0.001, "p99": 0.01, "max": 0.02}
    plain: dict[str, Any] = {
        "enqueued": 1_000, "lost": 0, "stuck": 0, "dead_lettered": 0, "poison": 0,
        "duplicates": [], "second_starts": [{}] * 8,
        "recovery_s": {"p50": 2.0, "p99": 2.2, "max": 2.2},
        "overshoot_s": {"p50": 0.01, "p99": 0.02, "max": 0.02},
        "healthy": {"jobs": 990, "seconds": 10.0, "latency_s": latency, "throughput_per_s": 49.0},
        "redis_requests_per_job": 2.0, "redis_cpu_us_per_job": 200.0,
        "wall_s": 30.0, "redis_requests": 2_000, "redis_cpu_s": 0.2, "cpu_s": {"worker": 1.5, "reaper": 0.5},
        "cpu_us_per_job": {"worker": 1_500.0, "reaper": 500.0},
        "processes": {"worker": 4}, "objections": [], "left_out": [], "faults": [],
        "settings": {"trace": "generated", "speedup": 1.0, "seed": 1}, "server": "Redis 7.0.15",
        "keys": {"journal": "{x}:journal"},
    }  # fmt: skip
    return plain | changes


def played(mode: str, turn: int = 0, scenario: Scenario = CRASH, **changes: Any) -> PlayedDrill:
    return PlayedDrill(scenario.name, mode, turn, report(**changes))


def test_of_several_turns_the_median_is_told_and_how_far_they_lie_apart() -> None:
    turns = [played("reaper", turn, redis_requests_per_job=value) for turn, value in enumerate((2.0, 5.0, 2.5))]
    assert measure(turns, "one-crash")["requests"] == {"reaper": Measured(2.5, 2.0, 5.0, 3, 3)}


@pytest.mark.parametrize(
    ("name", "turns", "shown"),
    [
        ("lost", (0, 0, 5), "5 (in 1 of 3 turns)"),
        ("lost", (4, 0, 5), "9 (in 2 of 3 turns, 5 at worst)"),
        ("lost", (0, 0, 0), "0"),
        ("stuck", (0, 1), "1 (in 1 of 2 turns)"),
        ("lost", (5,), "5"),
        ("redis_requests_per_job", (2.0, 5.0, 2.5), "2.50 (2.00 to 5.00)"),
        ("redis_requests_per_job", (2.0, 2.0), "2.00"),
    ],
)
def test_what_must_not_happen_is_summed_and_everything_else_carries_its_spread(
    name: str, turns: tuple[float, ...], shown: str
) -> None:
    told: list[dict[str, Any]] = [{name: value} for value in turns]
    found = measure([played("reaper", turn, **changes) for turn, changes in enumerate(told)], "one-crash")
    figure = next(each for each in FIGURES if each.name == {"redis_requests_per_job": "requests"}.get(name, name))
    assert write_all(figure, found[figure.name]["reaper"]) == shown


@pytest.mark.parametrize("name", ["lost", "stuck", "dead_lettered", "duplicates"])
def test_a_harm_in_one_turn_of_three_is_never_the_better_one(name: str) -> None:
    harm: dict[str, Any] = {name: [{"cause": "slow"}] * 5 if name == "duplicates" else 5}
    turns = [played("reaper", turn) for turn in range(3)]
    turns += [played("embedded", turn, recovery_s={"max": 0.1}, **(harm if turn == 2 else {})) for turn in range(3)]
    verdict = judge(measure(turns, "one-crash"), ("reaper", "embedded"))
    assert verdict.best == ("reaper",)
    assert "against embedded 5 (in 1 of 3 turns)." in verdict.sentences[0]


def test_a_harm_that_may_be_chance_is_told_where_a_mode_is_called_the_better_one() -> None:
    turns = [played("reaper", turn, recovery_s={"max": 9.0}) for turn in range(2)]
    turns += [played("embedded", turn, duplicates=[{"cause": "slow"}] * turn) for turn in range(2)]
    turns += [played("claim", turn) for turn in range(2)]
    verdict = judge(measure(turns, "one-crash"), ("reaper", "embedded", "claim"))
    assert verdict.best == ("embedded", "claim")
    told = "Too few to tell them apart, jobs completed twice: embedded 1 (in 1 of 2 turns) and claim 0."
    assert [sentence for sentence in verdict.sentences if sentence.startswith("Too few")] == [told]


def test_every_figure_is_read_out_of_a_report() -> None:
    table = measure([played("reaper", poison=1, dead_lettered=3, processes={"worker": 4, "reaper": 3})], "one-crash")
    assert {name: row["reaper"].value for name, row in table.items()} == {
        "lost": 0,
        "stuck": 0,
        "innocent": 2,
        "duplicates": 0,
        "recovery_p50": 2.0,
        "recovery_max": 2.2,
        "overshoot_max": 0.02,
        "second_starts": 8,
        "latency_p99": 0.01,
        "latency_p50": 0.001,
        "throughput": 49.0,
        "requests": 2.0,
        "redis_cpu": 200.0,
        "cpu": 2_000.0,
    }


def test_what_a_mode_does_not_tell_is_left_out() -> None:
    nothing = {"p50": None, "p99": None, "max": None}
    table = measure([played("reaper"), played("none", overshoot_s=nothing)], "one-crash")
    assert set(table["overshoot_max"]) == {"reaper"}


def test_waiting_is_compared_by_what_it_costs_and_nothing_else() -> None:
    processes = {"worker": 4, "reaper": 3}
    used: dict[str, Any] = {
        "wall_s": 30.0,
        "redis_requests": 75,
        "redis_cpu_s": 0.012,
        "cpu_s": {"worker": 0.09, "reaper": 0.06},
    }
    table = measure([played("reaper", scenario=IDLE, processes=processes, **used)], "idle")
    assert {name: row["reaper"].value for name, row in table.items()} == {
        "idle_requests": 2.5,
        "idle_redis": pytest.approx(0.4),
        "idle_cpu": pytest.approx(5.0),
        "processes": 7,
    }


# ---- verdicts

Rows = Mapping[str, Mapping[str, float]]


THREE = ("reaper", "embedded", "none")


def table(**rows: Mapping[str, float]) -> dict[str, dict[str, Measured]]:
    return {name: {mode: Measured(value, value, value) for mode, value in row.items()} for name, row in rows.items()}


def test_a_mode_that_loses_jobs_is_never_the_better_one() -> None:
    verdict = judge(
        table(
            lost={"reaper": 0, "embedded": 0, "none": 3},
            recovery_max={"reaper": 2.0, "embedded": 2.1, "none": 0.1},
            requests={"reaper": 2.0, "embedded": 1.0, "none": 0.1},
        ),
        THREE,
    )
    assert verdict == Verdict(
        ("reaper", "embedded"),
        ("embedded",),
        (
            "Jobs lost: reaper 0 and embedded 0, against none 3.",
            "Requests to Redis a job: embedded 1.00, against reaper 2.00.",
        ),
    )


def test_of_safe_modes_the_quicker_one_is_better_whatever_it_costs() -> None:
    verdict = judge(
        table(
            lost={"reaper": 0, "embedded": 0},
            recovery_max={"reaper": 2.2, "embedded": 22.0},
            requests={"reaper": 5.0, "embedded": 1.0},
        ),
        ("reaper", "embedded"),
    )
    assert verdict == Verdict(
        ("reaper",),
        ("reaper",),
        (
            "Fault to second start, longest: reaper 2.200 s, against embedded 22.0 s.",
            "In its favor: Requests to Redis a job: embedded 1.00, against reaper 5.00.",
        ),
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Measured(2.00, 2.0, 2.0), Measured(2.15, 2.15, 2.15)),  # less than a tenth
        (Measured(0.10, 0.1, 0.1), Measured(0.30, 0.3, 0.3)),  # a quarter of a second at the most
        (Measured(2.00, 1.0, 3.5), Measured(3.00, 2.0, 4.0)),  # turns lie further apart than modes
    ],
)
def test_small_differences_are_none(one: Measured, other: Measured) -> None:
    verdict = judge({"recovery_max": {"reaper": one, "embedded": other}}, ("reaper", "embedded"))
    assert verdict == Verdict(("reaper", "embedded"), ("reaper", "embedded"), ())


def test_a_mode_that_was_not_played_is_not_judged() -> None:
    verdict = judge(table(lost={"reaper": 0, "none": 0}), THREE)
    assert verdict.best == ("reaper", "none")


def test_what_speaks_for_the_others_is_told() -> None:
    verdict = judge(
        table(
            lost={"reaper": 0, "embedded": 0},
            recovery_max={"reaper": 9.0, "embedded": 2.0},
            latency_p99={"reaper": 0.1, "embedded": 0.9},
            second_starts={"reaper": 1, "embedded": 90},
        ),
        ("reaper", "embedded"),
    )
    assert verdict.best == ("embedded",)
    # How many jobs were started again says nothing by itself: it depends on how many were held.
    assert verdict.sentences[-1].startswith("In its favor: Wait of healthy jobs")


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict(THREE, THREE, ()), "All are equally safe and fast"),
        (Verdict(THREE, ("embedded",), ()), "All are equally safe and fast; embedded at less cost"),
        (Verdict(("reaper",), ("reaper",), ()), "Better: reaper"),
        (Verdict(("reaper", "embedded"), ("reaper",), ()), "Better: reaper and embedded; reaper at less cost"),
        (Verdict(THREE, ("embedded",), (), had_faults=False), "embedded at less cost"),
        (Verdict(THREE, THREE, (), had_faults=False), "All cost the same"),
    ],
)
def test_a_headline_says_who_is_better(verdict: Verdict, words: str) -> None:
    assert headline(verdict, THREE) == words


# ---- scenarios in which the fault hit nothing


def _crash(mode: str, turn: int = 0, starts: int = 8, **changes: Any) -> PlayedDrill:
    return played(mode, turn, second_starts=[{}] * starts, **changes)


def test_a_crash_that_interrupted_no_job_has_no_verdict() -> None:
    """Healthy jobs have figures all the same, and one mode costs less than the other."""
    drills = [_crash("reaper", starts=0), _crash("embedded", starts=0, redis_requests_per_job=1.0)]
    comparison = conclude(Drills(Plan([CRASH], ("reaper", "embedded"), 1), drills), "2026-11-20T16:00:00+00:00")
    (found,) = comparison.found
    assert (found.verdict.best, found.verdict.cheapest) == ((), ())
    assert found.verdict.untested == ("reaper", "embedded")
    assert comparison.overall == ["One worker crashes: Not tested."]
    page = write_page(comparison).partition("<script")[0]
    assert "Not tested" in page
    assert "No job started again with reaper and embedded" in page
    assert "at less cost" not in page
    assert "equally safe" not in page


@pytest.mark.parametrize("turns", [(8, 0), (0, 8)])
def test_one_turn_that_tested_nothing_spoils_the_scenario(turns: tuple[int, int]) -> None:
    drills = [_crash("reaper", turn, starts) for turn, starts in enumerate(turns)]
    drills += [_crash("embedded", turn) for turn in range(2)]
    verdict = judge(measure(drills, "one-crash"), ("reaper", "embedded"), restarts=True)
    assert verdict.untested == ("reaper",)


def test_a_mode_that_lost_the_jobs_was_hit() -> None:
    drills = [_crash("reaper"), _crash("none", starts=0, lost=3)]
    verdict = judge(measure(drills, "one-crash"), ("reaper", "none"), restarts=True)
    assert verdict.best == ("reaper",)


def test_the_summary_has_the_verdict_of_each_scenario() -> None:
    drills = [_crash(mode, starts=0) for mode in ("reaper", "embedded")]
    used: dict[str, Any] = {"wall_s": 30.0, "redis_cpu_s": 0.012, "cpu_s": {"worker": 0.09}}
    drills += [
        played("reaper", scenario=IDLE, redis_requests=75, **used),
        played("embedded", scenario=IDLE, redis_requests=30, **used),
    ]
    plan = Plan([CRASH, IDLE], ("reaper", "embedded"), 1)
    comparison = conclude(Drills(plan, drills), "2026-11-20T16:00:00+00:00")
    assert comparison.overall == ["One worker crashes: Not tested.", "Nothing to do: embedded at less cost."]


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_a_scenario_whose_faults_kill_has_to_interrupt_jobs(scenario: Scenario) -> None:
    kills = any(fault.startswith(("kill-worker", "poison")) for fault in scenario.faults)
    assert scenario.restarts == kills


# ---- plans


def test_every_mode_gets_the_same_faults_at_the_same_moments() -> None:
    plan = Plan([CRASH], MODES, 2, ("--seed", "7"))
    assert [(scenario.name, mode, turn) for scenario, mode, turn in plan.plays()] == [
        ("one-crash", mode, turn) for turn in (0, 1) for mode in MODES
    ]
    words = {mode: plan.words(CRASH, mode) for mode in MODES}
    same = ["--no-bare-worker", "--quiet", "--fault", "kill-worker@4", "--seed", "7"]
    assert words == {
        "reaper/stream": ["drill", "--recovery", "reaper", *same],
        "reaper/in-place": ["drill", "--recovery", "reaper", "--policy", "in-place", *same],
        "embedded/stream": ["drill", "--recovery", "embedded", *same],
        "embedded/in-place": ["drill", "--recovery", "embedded", "--policy", "in-place", *same],
        "none": ["drill", "--recovery", "none", *same],
    }


def test_where_a_trace_lies_is_not_told() -> None:
    plan = Plan([CRASH], MODES, 1, ("--trace", "/home/me/trace.csv", "--limit", "9"))
    assert plan.shown_options == ["--trace", "trace.csv", "--limit", "9"]


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_the_drill_can_read_every_fault(scenario: Scenario) -> None:
    assert tuple(str(parse_fault(fault)) for fault in scenario.faults) == scenario.faults
    assert moved(scenario, FAULT_AT_S) == scenario


def test_harm_can_be_done_when_jobs_are_in_flight() -> None:
    scenario = SCENARIOS["half-the-pool"]
    assert moved(scenario, 7.5).words[:4] == ["--fault", "kill-worker:half@7.5", "--long-jobs", "10000@4.5+4"]
    assert moved(scenario, 4).faults == scenario.faults
    with pytest.raises(ConfigurationError, match="too early for 'half-the-pool'"):
        moved(scenario, 2)


def test_a_scenario_that_is_misspelt_is_a_sentence() -> None:
    assert choose_scenarios(("poison", "one-crash")) == [SCENARIOS["one-crash"], SCENARIOS["poison"]]
    assert len(choose_scenarios(())) == len(SCENARIOS)
    with pytest.raises(ConfigurationError, match="Did you mean 'one-crash'"):
        choose_scenarios(("one-crush",))


# ---- the written text


def test_the_page_shows_figures_verdicts_and_what_was_left_out() -> None:
    left_out = [{"asked": "kill-holder@4", "played": None, "why": "no reaper runs"}]
    drills = [
        played("reaper"),
        played("embedded", left_out=left_out, recovery_s={"p50": 2.0, "p99": 9.0, "max": 9.0}),
        played("none", lost=2, objections=["2 jobs are <lost>"]),
    ]
    found = Drills(Plan([CRASH], THREE, 1), drills, ("claim was <not> played.",))
    page = write_page(conclude(found, "2026-11-20T16:00:00+00:00"))
    for told in (
        "Better: reaper",
        "2.200 s",
        "9.000 s",
        "kill-holder@4 was left out (no reaper runs)",
        "claim was &lt;not&gt; played.",
        "none: 2 jobs are &lt;lost&gt;.",
    ):
        assert told in page
    assert "http" not in page.replace("http://www.w3.org/", "")
    assert page.count("<script") == 1
    assert page.count("<table") == 1, "one table of figures a scenario"


def test_every_figure_has_a_name_of_its_own() -> None:
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)
    assert len({(figure.title, figure.name.startswith("idle")) for figure in FIGURES}) == len(FIGURES)
