"""The faults that are drawn for a chaos, and those that never are."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

from reaper.drill.faults import LONG_JOBS, Fault, FaultKind, parse_fault
from reaper.drill.recoveries import RECOVERIES
from tests.soak.chaos import (
    BLOWS,
    CATALOGUE,
    NOT_WITHOUT_US,
    Conditions,
    Schedule,
    calm_s,
    draw,
    kinds_for,
    most_blows,
    patience_s,
    rule_between,
)
from tests.soak.kinds import AGAINST_REAPERS, FAILOVERS, SOAK_FORMS, SoakKind
from workers.protocol.address import Topology

SEEDS = range(20)


def _conditions(recovery: str = "reaper", *, reapers: int = 3, bare_worker: bool = True) -> Conditions:
    return Conditions(
        recovery=RECOVERIES[recovery],
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
        "pause-clients:all@9.4+3.1",
        "kill-reapers@10.4+1.7",
        "kill-holder@10.7",
    ]


def test_every_kind_of_fault_is_in_the_catalogue() -> None:
    assert set(CATALOGUE) == set(SOAK_FORMS)


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_every_kind_that_can_be_played_is_drawn_sooner_or_later(recovery: str) -> None:
    drawn = Counter(fault.kind for seed in SEEDS for fault in draw(seed, 60, _conditions(recovery)))
    assert set(drawn) == set(kinds_for(RECOVERIES[recovery], reapers=3))


def test_what_cannot_be_played_is_not_drawn() -> None:
    assert not AGAINST_REAPERS & set(kinds_for(RECOVERIES["embedded"], reapers=0))
    assert FaultKind.PAUSE_HOLDER not in kinds_for(RECOVERIES["reaper"], reapers=1)
    assert not NOT_WITHOUT_US & set(kinds_for(RECOVERIES["none"], reapers=0))


@pytest.mark.parametrize("recovery", ["reaper", "embedded"])
@pytest.mark.parametrize("topology", [Topology.SENTINEL, Topology.CLUSTER])
def test_where_replicas_are_promoted_failovers_are_drawn_and_what_is_for_one_server_is_not(
    recovery: str, topology: Topology
) -> None:
    conditions = replace(_conditions(recovery, bare_worker=False), topology=topology)
    drawn = {fault.kind for seed in SEEDS for fault in draw(seed, 60, conditions)}
    assert drawn == set(kinds_for(conditions.recovery, reapers=3, topology=topology))
    assert drawn >= FAILOVERS
    assert (SoakKind.MOVE_SLOT in drawn) == (topology is Topology.CLUSTER)
    assert not drawn & {FaultKind.PAUSE_REDIS, SoakKind.RESTART_REDIS, SoakKind.CLOCK_STEP}


def test_what_is_out_of_reach_is_left_out_and_the_rest_stays_as_it_is() -> None:
    conditions = replace(_conditions(), out_of_reach=frozenset({SoakKind.CLOCK_STEP}))
    for seed in SEEDS:
        without = [fault for fault in draw(seed, 60, _conditions()) if fault.kind != SoakKind.CLOCK_STEP]
        assert list(draw(seed, 60, conditions)) == without


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_what_is_drawn_can_be_written_on_the_command_line_and_comes_in_its_time(recovery: str) -> None:
    for seed in SEEDS:
        faults = draw(seed, 30, _conditions(recovery))
        assert [parse_fault(str(fault), SOAK_FORMS) for fault in faults] == list(faults)
        assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
        assert all(0 <= fault.at.total_seconds() <= 30 for fault in faults)
        assert all(fault.lasts for fault in faults if SOAK_FORMS[fault.kind].lasts)


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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("poison", "kill-worker"),
        ("poison", "pause-worker"),
        ("poison", "pause-holder"),
        ("poison", "poison"),
        ("destroy-group", "kill-worker"),
        ("destroy-group", "pause-worker"),
        ("destroy-group", "poison"),
        ("destroy-group", "kill-holder"),
        ("destroy-group", "kill-reapers"),
        ("destroy-group", "pause-redis"),
        ("destroy-group", "clock-step"),
        ("destroy-group", "destroy-group"),
        ("delete-consumer", "kill-worker"),
        ("delete-consumer", "pause-worker"),
        ("delete-consumer", "poison"),
        ("delete-consumer", "kill-holder"),
        ("delete-consumer", "pause-redis"),
        ("delete-consumer", "clock-step"),
        ("delete-consumer", "destroy-group"),
        ("delete-consumer", "shorten-visibility"),
        ("pause-holder", "kill-reapers"),
        ("pause-holder", "pause-redis"),
        ("shorten-visibility", "kill-holder"),
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
    assert rule_between(one, other)
    assert rule_between(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("kill-worker", "kill-worker"),
        ("kill-worker", "kill-reapers"),
        ("kill-worker", "pause-redis"),
        ("poison", "kill-holder"),
        ("poison", "pause-redis"),
        ("poison", "clock-step"),
        ("kill-worker", "restart-redis"),
        ("pause-worker", "fill-redis"),
        ("kill-holder", "cut-connections"),
        ("clock-step", "restart-redis"),
        ("kill-reapers", "clock-step"),
        ("long-jobs", "destroy-group"),
    ],
)
def test_what_must_be_coped_with_at_once_may_come_at_once(one: str, other: str) -> None:
    assert rule_between(one, other) is None


def test_what_puts_off_recovery_makes_longer_what_is_under_way() -> None:
    schedule = Schedule(_conditions())
    schedule.add(_fault(FaultKind.KILL_WORKER, 5))
    over = 5 + calm_s(FaultKind.KILL_WORKER, _conditions())
    assert not schedule.objection(_fault(FaultKind.POISON, over + 0.5))
    schedule.add(parse_fault("pause-redis@6+3"))
    assert schedule.objection(_fault(FaultKind.POISON, over + 0.5))


def test_no_holder_is_paused_once_the_visibility_timeout_was_shortened() -> None:
    schedule = Schedule(_conditions())
    schedule.add(_fault(SoakKind.SHORTEN_VISIBILITY, 30))
    assert not schedule.objection(_fault(FaultKind.PAUSE_HOLDER, 2))
    assert schedule.objection(_fault(FaultKind.PAUSE_HOLDER, 90))


def test_some_chaos_has_a_bare_worker_and_nothing_that_it_would_not_survive() -> None:
    with_bare = [draw(seed, 60, _conditions()) for seed in SEEDS]
    fit = [faults for faults in with_bare if not {fault.kind for fault in faults} & NOT_WITHOUT_US]
    long = [fault.lasts_s for faults in fit for fault in faults if fault.kind == LONG_JOBS]
    assert len(SEEDS) / 4 < len(fit) < len(SEEDS)
    assert long


def test_the_more_is_drawn_the_longer_an_end_is_waited_for() -> None:
    faults = draw(1, 60, _conditions())
    figures = [patience_s(faults[:count], _conditions()) for count in range(len(faults) + 1)]
    assert figures[0] == 0
    assert figures == sorted(figures)
    assert figures[-1] > 60


def _fault(kind: str, at: float) -> Fault:
    example = SOAK_FORMS[kind].example
    text = str(parse_fault(example, SOAK_FORMS))
    return parse_fault(text.replace("@4", f"@{at:g}"), SOAK_FORMS)
