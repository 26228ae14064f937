"""Faults and their times, as written on the command line: ``kill-worker@4``. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from itertools import starmap

from workers.protocol.errors import ConfigurationError
from workers.protocol.settings import did_you_mean


class FaultKind(StrEnum):
    """What can be broken."""

    KILL_WORKER = "kill-worker"
    """Kill -9 of a worker with jobs in flight."""
    KILL_LEADER = "kill-leader"
    """Kill -9 of the reaper that leads."""
    PAUSE_LEADER = "pause-leader"
    """A worker is killed and, when its jobs are due, the leader is stopped between deciding and writing, past its
    lease; then it goes on."""
    POISON = "poison"
    """A job that kills every worker that takes it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject. ``at`` counts from the first job; it may come later, when there is something to hit."""

    kind: FaultKind
    at: timedelta

    def __str__(self) -> str:
        return f"{self.kind}@{self.at.total_seconds():g}"


DEFAULT_FAULTS = tuple(
    starmap(
        Fault,
        (
            (FaultKind.KILL_WORKER, timedelta(seconds=2)),
            (FaultKind.POISON, timedelta(seconds=5)),
            (FaultKind.KILL_LEADER, timedelta(seconds=8)),
            (FaultKind.PAUSE_LEADER, timedelta(seconds=12)),
        ),
    )
)
"""One of each, far enough apart for ``max_deliveries`` 3: a job that is innocent but unlucky may be hit twice (by a
killed worker and a run of the poison job, say), after which it is a suspect and runs apart from the poison job."""


def parse_fault(text: str) -> Fault:
    """Read ``kind@seconds``. Raises ConfigurationError."""
    name, at, seconds = text.strip().partition("@")
    kinds = {str(kind) for kind in FaultKind}
    if name not in kinds:
        raise ConfigurationError(f"unknown fault {name!r}{did_you_mean(name, kinds)}")
    if not at:
        raise ConfigurationError(f"fault {text!r} has no time: write '{name}@4' for 4 seconds after the first job.")
    try:
        return Fault(FaultKind(name), timedelta(seconds=float(seconds)))
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"fault {text!r}: {seconds!r} is no number of seconds; write '{name}@4' or '{name}@2.5'."
        ) from error


def without_leaders(faults: Iterable[Fault]) -> Iterable[Fault]:
    """Return what is left of ``faults`` where nobody leads: what hits workers."""
    for fault in faults:
        if fault.kind is FaultKind.PAUSE_LEADER:
            yield replace(fault, kind=FaultKind.KILL_WORKER)
        elif fault.kind is not FaultKind.KILL_LEADER:
            yield fault


def check_faults(faults: Iterable[Fault], *, reapers: int) -> None:
    """Refuse faults that cannot be played. Raises ConfigurationError."""
    for fault in faults:
        if fault.at < timedelta(0):
            raise ConfigurationError(f"fault '{fault}' lies before the first job: give it a time of 0 or more.")
        if fault.kind is FaultKind.PAUSE_LEADER and reapers == 1:
            raise ConfigurationError(
                f"fault '{fault}' needs a second reaper, which leads while the first is paused: --reapers 2 or more."
            )
