"""Faults and their times, as written on the command line: ``kill-worker@4``, ``pause-redis@5+10``. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Literal

from workers.protocol.errors import ConfigurationError
from workers.runtime.settings_errors import did_you_mean


class FaultKind(StrEnum):
    """What a drill can break. `FORMS` says how each is written and what it does."""

    KILL_WORKER = "kill-worker"
    KILL_WORKERS = "kill-workers"
    PAUSE_WORKER = "pause-worker"
    POISON = "poison"
    KILL_LEADER = "kill-leader"
    PAUSE_LEADER = "pause-leader"
    KILL_REAPERS = "kill-reapers"
    PAUSE_REDIS = "pause-redis"
    PAUSE_CLIENTS = "pause-clients"
    RESTART_REDIS = "restart-redis"
    LONG_JOBS = "long-jobs"


@dataclass(frozen=True, slots=True)
class Form:
    """How a kind is written (``kind[:amount]@seconds[+seconds]``), and what it does."""

    example: str
    does: str
    """For people, as in ``--help``."""
    amount: Literal["", "number", "workers"] = ""
    """What may follow the colon: a number, or for ``workers`` also ``half``, ``all`` or names (``w1,w3``)."""
    words: tuple[str, ...] = ()
    """Words that may follow the colon instead. The first one is the default."""
    lasts: Literal["", "optional", "required"] = ""
    """Whether ``+seconds`` may follow."""
    hits: Literal["", "leaders", "redis"] = ""
    """Other processes than workers that it hits. While ``redis`` is hit, it does not answer or takes no writes."""


FORMS: Mapping[str, Form] = {
    FaultKind.KILL_WORKER: Form("kill-worker@4", "kill -9 of the worker with the most jobs in flight *"),
    FaultKind.KILL_WORKERS: Form(
        "kill-workers:half@4", "kill -9 of half the workers at once; also :all, :2, :w1,w3", amount="workers"
    ),
    FaultKind.PAUSE_WORKER: Form(
        "pause-worker@4+6", "SIGSTOP of the worker with the most jobs in flight for 6 s *", lasts="required"
    ),
    FaultKind.POISON: Form(
        "poison@4", "a job that kills every worker that runs it (poison:3@4: three jobs)", amount="number"
    ),
    FaultKind.KILL_LEADER: Form("kill-leader@4", "kill -9 of the reaper that leads *", hits="leaders"),
    FaultKind.PAUSE_LEADER: Form(
        "pause-leader@4",
        "a worker is killed, then the leader is paused past its lease while it is about to recover the jobs *",
        hits="leaders",
    ),
    FaultKind.KILL_REAPERS: Form(
        "kill-reapers@4+10",
        "kill -9 of all reapers, which start again 10 s later (without +10: never)",
        lasts="optional",
        hits="leaders",
    ),
    FaultKind.PAUSE_REDIS: Form("pause-redis@4+10", "SIGSTOP of Redis for 10 s", lasts="required", hits="redis"),
    FaultKind.PAUSE_CLIENTS: Form(
        "pause-clients:all@4+2",
        "Redis postpones all commands for 2 s (CLIENT PAUSE), or :writes alone, as in a planned failover",
        words=("writes", "all"),
        lasts="required",
        hits="redis",
    ),
    FaultKind.RESTART_REDIS: Form(
        "restart-redis@4+2",
        "kill -9 of Redis, which starts again 2 s later with everything that it had acknowledged",
        lasts="required",
        hits="redis",
    ),
    FaultKind.LONG_JOBS: Form(
        "long-jobs:20@4+6", "no fault: 20 more jobs at once, 6 s each", amount="number", lasts="required"
    ),
}
AFTER_PAUSE_S = 10.0
"""How long after an outage of Redis processes may still fail because of it."""

SHARES = ("half", "all")
_NAMES = re.compile(r"w[1-9][0-9]{0,3}(,w[1-9][0-9]{0,3})*")
_FORM = re.compile(r"(?P<kind>[^:@+]*)(:(?P<amount>[^@]*))?(@(?P<at>[^+]*)(\+(?P<lasts>.*))?)?")
_MOST = 10_000
_LONGEST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject.

    ``at`` counts from the first job. Kinds whose text ends with ``*`` wait until there is a process that they can hit.
    All others come exactly then.
    """

    kind: str
    at: timedelta
    amount: str = "1"
    """How many workers or jobs: a number, ``half``, ``all`` or names; or one of the words of its form."""
    lasts: timedelta | None = None

    def __str__(self) -> str:
        amount = f":{self.amount}" if self.amount != "1" else ""
        lasts = "" if self.lasts is None else f"+{self.lasts.total_seconds():g}"
        return f"{self.kind}{amount}@{self.at.total_seconds():g}{lasts}"

    def how_many(self, of: int) -> int:
        """Return the amount, out of ``of``. Half of them is rounded up."""
        shares = {"half": (of + 1) // 2, "all": of}
        return shares[self.amount] if self.amount in shares else min(of, int(self.amount))

    def slots(self, of: int) -> set[str]:
        """Return the slots of the workers that are meant, out of ``of``: those that are named, or the first ones."""
        if _NAMES.fullmatch(self.amount):
            return set(self.amount.split(","))
        return {f"w{n}" for n in range(1, self.how_many(of) + 1)}

    @property
    def lasts_s(self) -> float:
        """How long it lasts, in seconds; 0 for a kind that is over at once."""
        return self.lasts.total_seconds() if self.lasts else 0.0

    @property
    def over_at(self) -> timedelta:
        """When it is over by itself."""
        return self.at + (self.lasts or timedelta(0))


def _at(kind: FaultKind, seconds: float) -> Fault:
    return Fault(kind, timedelta(seconds=seconds))


DEFAULT_FAULTS = (
    _at(FaultKind.KILL_WORKER, 1.5),
    _at(FaultKind.POISON, 5),
    _at(FaultKind.KILL_LEADER, 8),
    _at(FaultKind.PAUSE_LEADER, 12),
)
"""One of each, far enough apart for ``max_deliveries`` 3. The killed worker's jobs have run again before the poison job
comes (visibility timeout and longest job: 3.35 s), so no other job crashes more than twice before it runs alone."""

DEMO_FAULTS = (
    _at(FaultKind.KILL_WORKER, 1),
    _at(FaultKind.POISON, 4.5),
    _at(FaultKind.KILL_LEADER, 7),
    _at(FaultKind.PAUSE_LEADER, 9.5),
)
"""The same, a little closer together, so that three acts take about a minute."""


def parse_fault(text: str, forms: Mapping[str, Form] = FORMS) -> Fault:
    """Read ``kind[:amount]@seconds[+seconds]`` of one of ``forms``. Raises ConfigurationError."""
    found = _FORM.fullmatch(text.strip())
    kind = next((kind for kind in forms if found and kind == found["kind"]), None)
    if found is None or kind is None:
        name = found["kind"] if found else text
        raise ConfigurationError(f"there is no --fault {name!r}{did_you_mean(name, map(str, forms))}")
    form = forms[kind]
    if found["at"] is None:
        raise ConfigurationError(
            f"--fault {text!r} has no time: write '{form.example}' for 4 seconds after the first job."
        )
    at = _read_seconds(text, found["at"], form)
    return Fault(kind, at, _read_amount(text, found["amount"], form), _read_lasts(text, found["lasts"], form))


def _read_seconds(text: str, seconds: str, form: Form) -> timedelta:
    try:
        value = float(seconds)
    except ValueError:
        value = float("nan")
    if not abs(value) <= _LONGEST_S:
        raise ConfigurationError(f"--fault {text!r}: {seconds!r} is no number of seconds; write '{form.example}'.")
    return timedelta(seconds=value)


def _read_amount(text: str, amount: str | None, form: Form) -> str:
    if amount is None:
        return form.words[0] if form.words else "1"
    if form.words:
        if amount not in form.words:
            raise ConfigurationError(f"--fault {text!r}: {amount!r} is none of {', '.join(form.words)}.")
        return amount
    if not form.amount:
        raise ConfigurationError(f"--fault {text!r} takes no amount: write '{form.example}'.")
    if form.amount == "workers" and (amount in SHARES or _NAMES.fullmatch(amount)):
        return amount
    if amount.isascii() and amount.isdigit() and 1 <= int(amount) <= _MOST:
        return str(int(amount))
    raise ConfigurationError(f"--fault {text!r}: {amount!r} is no amount; write '{form.example}'.")


def _read_lasts(text: str, seconds: str | None, form: Form) -> timedelta | None:
    if seconds is None:
        if form.lasts == "required":
            raise ConfigurationError(f"--fault {text!r} does not say for how long: write '{form.example}'.")
        return None
    if not form.lasts:
        raise ConfigurationError(f"--fault {text!r} takes no '+seconds': write '{form.example}'.")
    lasts = _read_seconds(text, seconds, form)
    if lasts <= timedelta(0):
        raise ConfigurationError(f"--fault {text!r} lasts no time at all: write '{form.example}'.")
    return lasts


@dataclass(frozen=True, slots=True)
class Adapted:
    """What is played of a fault where no reaper runs."""

    asked: Fault
    played: Fault | None
    """None = left out."""
    why: str = ""


def adapt_faults(faults: Iterable[Fault], *, reapers: bool) -> list[Adapted]:
    """Return what is played of ``faults``. Without reapers, faults of leaders become faults of workers, or nothing."""
    return [Adapted(fault, fault) if reapers else _without_leaders(fault) for fault in faults]


def _without_leaders(fault: Fault) -> Adapted:
    if fault.kind == FaultKind.PAUSE_LEADER:
        why = "no reaper leads, so only a worker is killed"
        return Adapted(fault, replace(fault, kind=FaultKind.KILL_WORKER), why)
    if fault.kind in FORMS and FORMS[fault.kind].hits == "leaders":
        return Adapted(fault, None, "no reaper runs")
    return Adapted(fault, fault)


def check_faults(faults: Sequence[Fault], *, reapers: int) -> None:
    """Refuse faults that cannot be played. Raises ConfigurationError."""
    for fault in faults:
        if fault.at < timedelta(0):
            raise ConfigurationError(f"--fault '{fault}' lies before the first job: give it a time of 0 or more.")
        if fault.kind == FaultKind.PAUSE_LEADER and reapers == 1:
            raise ConfigurationError(
                f"--fault '{fault}' needs a second reaper, which leads while the first is paused: --reapers 2 or more."
            )
