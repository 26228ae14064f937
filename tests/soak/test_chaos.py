"""The faults that are drawn for a chaos, and those that never are."""

from collections import Counter
from itertools import combinations

import pytest

from reaper.drill.faults import Fault, FaultKind, parse_fault
from reaper.drill.recoveries import RECOVERIES
from tests.soak.chaos import (
    BLOWS,
    Conditions,
    calm_s,
    draw,
    kinds_for,
    most_blows,
    rule_between,
)
from tests.soak.kinds import SOAK_FORMS

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


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_every_kind_that_can_be_played_is_drawn_sooner_or_later(recovery: str) -> None:
    drawn = Counter(fault.kind for seed in SEEDS for fault in draw(seed, 60, _conditions(recovery)))
    assert set(drawn) == set(kinds_for(RECOVERIES[recovery], reapers=3))


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
