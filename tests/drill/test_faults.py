"""Faults as they are written on the command line."""

from datetime import timedelta

import pytest

from reaper.drill.cli import HELP
from reaper.drill.faults import (
    DEFAULT_FAULTS,
    DEMO_FAULTS,
    FORMS,
    LONG_JOBS,
    Fault,
    FaultKind,
    parse_fault,
    parse_long_jobs,
    without_reapers,
)
from workers.protocol.errors import ConfigurationError


def test_a_fault_is_a_kind_and_a_time() -> None:
    assert parse_fault("kill-worker@4") == Fault(FaultKind.KILL_WORKER, timedelta(seconds=4))
    assert parse_fault(" pause-holder@2.5 ") == Fault(FaultKind.PAUSE_HOLDER, timedelta(seconds=2.5))
    assert parse_fault("kill-reapers@4+6") == Fault(
        FaultKind.KILL_REAPERS, timedelta(seconds=4), lasts=timedelta(seconds=6)
    )


def test_added_jobs_are_an_option_and_no_fault() -> None:
    assert parse_long_jobs("20@4+6") == Fault(LONG_JOBS, timedelta(seconds=4), "20", timedelta(seconds=6))
    assert len(FaultKind) == len(FORMS) == 7
    with pytest.raises(ConfigurationError, match="unknown --fault 'long-jobs'"):
        parse_fault("long-jobs:20@4+6")
    with pytest.raises(ConfigurationError, match=r"cannot read --long-jobs '20@4'\. Write it like '20@4\+6'"):
        parse_long_jobs("20@4")


@pytest.mark.parametrize("kind", FaultKind)
def test_the_example_of_every_kind_can_be_read(kind: FaultKind) -> None:
    fault = parse_fault(FORMS[kind].example)
    assert (fault.kind, str(fault)) == (kind, FORMS[kind].example)


def test_help_shows_every_kind() -> None:
    for form in FORMS.values():
        assert f" {form.example} " in HELP


@pytest.mark.parametrize("fault", [*DEFAULT_FAULTS, *DEMO_FAULTS])
def test_a_fault_is_printed_as_it_is_written(fault: Fault) -> None:
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kill-hodler@4", "unknown --fault 'kill-hodler'. Did you mean 'kill-holder'?"),
        ("", "unknown --fault ''. Choose one of"),
        *(
            (text, f"cannot read --fault '{text}'. Write it like 'poison@4', for 4 seconds after the first job")
            for text in (
                "poison",
                "poison@soon",
                "poison@nan",
                "poison@inf",
                "poison@-1",
                "poison:half@4",
                "poison@4+2",
                "poison:10001@4",
                "poison:@4",
            )
        ),
        *((f"kill-worker:{amount}@4", "also :half, :all, :w1,w3.") for amount in ("2", "w0", "w1,", "w1,3", "w99999")),
        *((text, "like 'pause-redis@4+10'") for text in ("pause-redis@4", "pause-redis@4+0", "pause-redis@4+soon")),
    ],
)
def test_what_is_no_fault_is_rejected_with_what_to_write_instead(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as rejection:
        parse_fault(text)
    assert sentence in str(rejection.value)


def test_without_reapers_the_faults_that_hit_workers_are_left() -> None:
    asked = [*DEFAULT_FAULTS, parse_fault("kill-reapers@3+2"), parse_fault("kill-worker:half@4")]
    assert [str(without_reapers(fault)) for fault in asked] == [
        "kill-worker@1.5", "poison@5", "None", "kill-worker@12", "None", "kill-worker:half@4",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("kill-worker:all@1", {"w1", "w2", "w3", "w4"}),
        ("kill-worker:half@1", {"w1", "w2"}),
        ("kill-worker:w3@1", {"w3"}),
        ("kill-worker:w1,w4@1", {"w1", "w4"}),
    ],
)
def test_several_workers_are_a_share_or_named(text: str, slots: set[str]) -> None:
    fault = parse_fault(text)
    assert (str(fault), fault.slots(4)) == (text, slots)
