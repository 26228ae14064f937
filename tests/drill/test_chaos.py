"""What is drawn for a chaos, and what never is."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from typing import Any

import pytest

from reaper.drill.chaos import (
    APART,
    BLOWS,
    CATALOGUE,
    NOT_WITHOUT_US,
    Conditions,
    Schedule,
    calm_s,
    draw,
    in_words,
    kinds_for,
    most_blows,
    patience_s,
    rule_between,
)
from reaper.drill.faults import AGAINST_LEADERS, FAILOVERS, FORMS, OWN_SERVER, Fault, FaultKind, parse_fault
from reaper.drill.recoveries import RECOVERIES, find_recovery
from reaper.drill.settings import DrillSettings
from workers.protocol.address import Topology

SEEDS = range(40)


def _conditions(recovery: str = "reaper", *, reapers: int = 3, bare_worker: bool = True) -> Conditions:
    return Conditions(
        recovery=find_recovery(recovery),
        workers=4,
        reapers=reapers,
        visibility_s=2.0,
        lease_ttl_s=1.5,
        longest_job_s=1.5,
        max_deliveries=3,
        bare_worker=bare_worker,
    )


def _as_text(faults: tuple[Fault, ...]) -> list[str]:
    return list(map(str, faults))


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_the_same_seed_draws_the_same_faults_and_another_one_others(recovery: str) -> None:
    conditions = _conditions(recovery)
    assert _as_text(draw(7, 60, conditions)) == _as_text(draw(7, 60, conditions))
    assert len({tuple(_as_text(draw(seed, 60, conditions))) for seed in SEEDS}) == len(SEEDS)


def test_a_seed_draws_the_same_on_every_machine_and_in_every_process() -> None:
    assert _as_text(draw(1, 12, _conditions())) == [
        "pause-worker@1.3+2.1",
        "long-jobs:13@1.5+0.9",
        "long-jobs:9@1.9+1.2",
        "poison@8",
        "kill-reapers@9.4+1.4",
        "kill-leader@10.8",
        "clock-step:ahead@11.1",
    ]


def test_every_kind_of_fault_is_in_the_catalogue() -> None:
    assert set(CATALOGUE) == set(FaultKind)


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_every_kind_that_can_be_played_is_drawn_sooner_or_later(recovery: str) -> None:
    drawn = Counter(fault.kind for seed in SEEDS for fault in draw(seed, 60, _conditions(recovery)))
    assert set(drawn) == set(kinds_for(find_recovery(recovery), reapers=3))


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_in_ten_minutes_every_kind_comes_again_and_again(recovery: str) -> None:
    drawn = Counter(fault.kind for fault in draw(2, 600, _conditions(recovery, bare_worker=False)))
    for kind in set(kinds_for(find_recovery(recovery), reapers=3)) - {FaultKind.SHORTEN_VISIBILITY}:
        assert drawn[kind] >= 3, (kind, drawn)


def test_what_cannot_be_played_is_not_drawn() -> None:
    assert not AGAINST_LEADERS & set(kinds_for(find_recovery("embedded"), reapers=0))
    assert FaultKind.PAUSE_LEADER not in kinds_for(find_recovery("reaper"), reapers=1)
    assert not NOT_WITHOUT_US & set(kinds_for(find_recovery("published"), reapers=0))


@pytest.mark.parametrize("recovery", ["reaper", "embedded"])
@pytest.mark.parametrize("topology", [Topology.SENTINEL, Topology.CLUSTER])
def test_where_replicas_are_promoted_failovers_are_drawn_and_what_is_for_one_server_is_not(
    recovery: str, topology: Topology
) -> None:
    conditions = replace(_conditions(recovery, bare_worker=False), topology=topology)
    drawn = {fault.kind for seed in SEEDS for fault in draw(seed, 60, conditions)}
    assert drawn == set(kinds_for(conditions.recovery, reapers=3, topology=topology))
    assert drawn >= FAILOVERS
    assert (FaultKind.MOVE_SLOT in drawn) == (topology is Topology.CLUSTER)
    assert not drawn & {FaultKind.PAUSE_REDIS, FaultKind.RESTART_REDIS, FaultKind.CLOCK_STEP}


def test_what_is_out_of_reach_is_left_out_and_the_rest_stays_as_it_is() -> None:
    conditions = replace(_conditions(), out_of_reach=frozenset({FaultKind.CLOCK_STEP}))
    for seed in SEEDS:
        without = [fault for fault in draw(seed, 60, _conditions()) if fault.kind is not FaultKind.CLOCK_STEP]
        assert list(draw(seed, 60, conditions)) == without


@pytest.mark.parametrize(
    ("redis", "compiler", "kinds"),
    [
        ({}, True, set()),
        ({}, False, {FaultKind.CLOCK_STEP}),
        ({"redis_url": "redis://127.0.0.1:1"}, True, {*OWN_SERVER, FaultKind.PAUSE_REDIS}),
        ({"redis_url": "redis://127.0.0.1:1", "redis_pid": 7}, True, set(OWN_SERVER)),
    ],
)
def test_the_server_and_the_machine_say_what_is_out_of_reach(
    redis: dict[str, Any], compiler: bool, kinds: set[FaultKind], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reaper.drill.settings.can_set_clocks", lambda: compiler)
    settings = DrillSettings(chaos=timedelta(seconds=60), **redis)
    assert settings.out_of_reach == kinds
    faults = settings.in_chaos(find_recovery("reaper"), []).faults
    assert len(faults) > 5
    assert not kinds & {fault.kind for fault in faults}


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_what_is_drawn_can_be_written_on_the_command_line_and_comes_in_its_time(recovery: str) -> None:
    for seed in SEEDS:
        faults = draw(seed, 30, _conditions(recovery))
        assert [parse_fault(str(fault)) for fault in faults] == list(faults)
        assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
        assert all(0 <= fault.at.total_seconds() <= 30 for fault in faults)
        assert {fault.lasts is None for fault in faults if FORMS[fault.kind].lasts} <= {False}


@pytest.mark.parametrize("recovery", ["reaper", "embedded"])
def test_what_would_lose_data_as_documented_is_never_drawn_together(recovery: str) -> None:
    conditions = _conditions(recovery)
    for seed in SEEDS:
        for one, later in combinations(draw(seed, 60, conditions), 2):
            over = one.over_at.total_seconds() + calm_s(one.kind, conditions)
            if later.at.total_seconds() <= over:
                assert rule_between(one.kind, later.kind) is None, (seed, str(one), str(later))


@pytest.mark.parametrize("recovery", ["reaper", "embedded"])
def test_no_job_can_die_with_its_worker_as_often_as_makes_a_dead_letter_of_it(recovery: str) -> None:
    conditions = _conditions(recovery)
    seen = 0
    for seed in SEEDS:
        blows = [fault for fault in draw(seed, 60, conditions) if fault.kind in BLOWS]
        for blow in blows:
            until = blow.at.total_seconds() + calm_s(FaultKind.KILL_WORKER, conditions)
            together = [one for one in blows if blow.at <= one.at and one.at.total_seconds() <= until]
            assert len(together) <= most_blows(conditions), (seed, [str(one) for one in together])
            seen = max(seen, len(together))
    assert seen == most_blows(conditions), "as many as may be do come together"


@pytest.mark.parametrize("rule", APART, ids=lambda rule: rule.why[:30])
def test_each_rule_keeps_its_kinds_apart_in_both_orders_until_the_first_is_over(rule: object) -> None:
    assert isinstance(rule, type(APART[0]))
    conditions = _conditions()
    for first, second in [(a, b) for a in rule.these for b in rule.those] + [
        (b, a) for a in rule.these for b in rule.those
    ]:
        schedule = Schedule(conditions)
        schedule.add(_fault(first, 5))
        assert schedule.objection(_fault(second, 6)), (first, second)
        if {first, second} != {FaultKind.SHORTEN_VISIBILITY, FaultKind.PAUSE_LEADER}:  # that one is for good
            assert not schedule.objection(_fault(second, 60)), (first, second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("poison", "kill-worker"),
        ("poison", "kill-workers"),
        ("poison", "pause-worker"),
        ("poison", "pause-leader"),
        ("poison", "poison"),
        ("destroy-group", "kill-worker"),
        ("destroy-group", "pause-worker"),
        ("destroy-group", "poison"),
        ("destroy-group", "kill-leader"),
        ("destroy-group", "kill-reapers"),
        ("destroy-group", "pause-redis"),
        ("destroy-group", "clock-step"),
        ("destroy-group", "destroy-group"),
        ("delete-consumer", "kill-worker"),
        ("delete-consumer", "pause-worker"),
        ("delete-consumer", "poison"),
        ("delete-consumer", "kill-leader"),
        ("delete-consumer", "pause-redis"),
        ("delete-consumer", "clock-step"),
        ("delete-consumer", "destroy-group"),
        ("delete-consumer", "shorten-visibility"),
        ("pause-leader", "kill-reapers"),
        ("pause-leader", "pause-redis"),
        ("shorten-visibility", "kill-leader"),
        ("shorten-visibility", "pause-worker"),
        ("pause-redis", "pause-redis"),
        ("pause-redis", "restart-redis"),
        ("restart-redis", "fill-redis"),
        ("fill-redis", "cut-connections"),
        ("destroy-group", "restart-redis"),
        ("delete-consumer", "cut-connections"),
        ("shorten-visibility", "fill-redis"),
        ("kill-reapers", "kill-reapers"),
    ],
)
def test_these_are_kept_apart(one: str, other: str) -> None:
    assert rule_between(FaultKind(one), FaultKind(other))
    assert rule_between(FaultKind(other), FaultKind(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("kill-workers", "kill-worker"),
        ("kill-workers", "kill-reapers"),
        ("kill-worker", "pause-redis"),
        ("poison", "kill-leader"),
        ("poison", "pause-redis"),
        ("poison", "clock-step"),
        ("kill-workers", "restart-redis"),
        ("pause-worker", "fill-redis"),
        ("kill-leader", "cut-connections"),
        ("clock-step", "restart-redis"),
        ("kill-reapers", "clock-step"),
        ("long-jobs", "destroy-group"),
    ],
)
def test_what_must_be_coped_with_at_once_may_come_at_once(one: str, other: str) -> None:
    assert rule_between(FaultKind(one), FaultKind(other)) is None


def test_what_puts_off_recovery_makes_longer_what_is_under_way() -> None:
    schedule = Schedule(_conditions())
    schedule.add(_fault(FaultKind.KILL_WORKER, 5))
    over = 5 + calm_s(FaultKind.KILL_WORKER, _conditions())
    assert not schedule.objection(_fault(FaultKind.POISON, over + 0.5))
    schedule.add(parse_fault("pause-redis@6+3"))
    assert schedule.objection(_fault(FaultKind.POISON, over + 0.5))


def test_no_leader_is_paused_once_the_visibility_timeout_was_shortened() -> None:
    schedule = Schedule(_conditions())
    schedule.add(_fault(FaultKind.SHORTEN_VISIBILITY, 30))
    assert not schedule.objection(_fault(FaultKind.PAUSE_LEADER, 2))
    assert schedule.objection(_fault(FaultKind.PAUSE_LEADER, 90))


def test_some_chaos_has_a_bare_worker_and_nothing_that_it_would_not_survive() -> None:
    with_bare = [draw(seed, 60, _conditions()) for seed in SEEDS]
    fit = [faults for faults in with_bare if not {fault.kind for fault in faults} & NOT_WITHOUT_US]
    long = [
        fault.lasts.total_seconds()
        for faults in fit
        for fault in faults
        if fault.kind is FaultKind.LONG_JOBS and fault.lasts
    ]
    assert len(SEEDS) / 4 < len(fit) < len(SEEDS)
    assert long


def test_the_more_is_drawn_the_longer_an_end_is_waited_for() -> None:
    faults = draw(1, 60, _conditions())
    figures = [patience_s(faults[:count], _conditions()) for count in range(len(faults) + 1)]
    assert figures[0] == 0
    assert figures == sorted(figures)
    assert figures[-1] > 60


def _fault(kind: FaultKind, at: float) -> Fault:
    example = FORMS[kind].example
    text = str(parse_fault(example))
    return parse_fault(text.replace("@4", f"@{at:g}"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kill-worker@4", "At 4 s: the worker with the most jobs in flight is killed."),
        ("kill-workers@4", "At 4 s: the first worker is killed."),
        ("kill-workers:2@4", "At 4 s: the first 2 workers are killed."),
        ("kill-workers:half@4", "At 4 s: half of the workers are killed."),
        ("kill-workers:all@4", "At 4 s: all workers are killed."),
        ("kill-workers:w2@4", "At 4 s: worker w2 is killed."),
        ("kill-workers:w1,w4@4.5", "At 4.5 s: workers w1, w4 are killed."),
        ("pause-worker@4+3", "At 4 s: the worker with the most jobs in flight is stopped for 3 s."),
        ("kill-reapers@4+2", "At 4 s: all reapers are killed, and started again 2 s later."),
        ("kill-reapers@4", "At 4 s: all reapers are killed, and started again never."),
        ("pause-redis@4+2.5", "At 4 s: Redis is stopped for 2.5 s."),
        ("restart-redis@4+2", "At 4 s: Redis is killed, and started again 2 s later."),
        ("fill-redis@4+2.5", "At 4 s: Redis is full for 2.5 s."),
        ("cut-connections@4", "At 4 s: every connection to Redis is cut."),
        ("clock-step:back@4", "At 4 s: the clock of Redis is set an hour back of the true time."),
        ("clock-step:ahead@4", "At 4 s: the clock of Redis is set an hour ahead of the true time."),
        ("poison@4", "At 4 s: a job that kills every worker that takes it."),
        ("poison:3@4", "At 4 s: 3 jobs, each of which kills every worker that takes it."),
        ("long-jobs:20@4+6", "At 4 s: 20 more jobs of 6 s each."),
    ],
)
def test_a_fault_is_told_in_a_plain_sentence(text: str, sentence: str) -> None:
    assert in_words(parse_fault(text)) == sentence


@pytest.mark.parametrize("kind", FaultKind)
def test_every_kind_has_words(kind: FaultKind) -> None:
    assert in_words(parse_fault(FORMS[kind].example)).startswith("At 4 s: ")
