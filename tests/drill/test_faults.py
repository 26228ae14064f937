"""Faults as they are written on the command line."""

from datetime import timedelta

import pytest

from reaper.drill.faults import DEFAULT_FAULTS, Fault, FaultKind, check_faults, parse_fault, without_leaders
from workers.protocol.errors import ConfigurationError


def test_a_fault_is_a_kind_and_a_time() -> None:
    assert parse_fault("kill-worker@4") == Fault(FaultKind.KILL_WORKER, timedelta(seconds=4))
    assert parse_fault(" pause-leader@2.5 ") == Fault(FaultKind.PAUSE_LEADER, timedelta(seconds=2.5))


@pytest.mark.parametrize("fault", DEFAULT_FAULTS)
def test_a_fault_is_printed_as_it_is_written(fault: Fault) -> None:
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kill-leder@4", "unknown fault 'kill-leder': did you mean 'kill-leader'?"),
        ("", "unknown fault '': known are"),
        ("poison", "has no time: write 'poison@4'"),
        ("poison@soon", "'soon' is no number of seconds"),
        ("poison@nan", "'nan' is no number of seconds"),
        ("poison@inf", "'inf' is no number of seconds"),
    ],
)
def test_what_is_no_fault_is_refused_with_what_to_write_instead(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parse_fault(text)
    assert sentence in str(refusal.value)


def test_a_leader_can_only_be_paused_where_another_can_lead() -> None:
    fault = parse_fault("pause-leader@1")
    check_faults([fault], reapers=2)
    with pytest.raises(ConfigurationError, match="needs a second reaper"):
        check_faults([fault], reapers=1)


def test_a_fault_before_the_first_job_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="before the first job"):
        check_faults([parse_fault("poison@-1")], reapers=3)


def test_without_leaders_the_faults_that_hit_workers_are_left() -> None:
    assert [str(fault) for fault in without_leaders(DEFAULT_FAULTS)] == [
        "kill-worker@2",
        "poison@5",
        "kill-worker@12",
    ]
