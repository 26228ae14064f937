"""Faults and their times, as written on the command line: ``kill-worker@4``, ``pause-redis@5+10``. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Literal

from workers.protocol.errors import ConfigurationError
from workers.runtime.settings_errors import did_you_mean


class FaultKind(StrEnum):
    """The kinds of faults. `FORMS` says how each is written and what it does."""

    KILL_WORKER = "kill-worker"
    KILL_WORKERS = "kill-workers"
    PAUSE_WORKER = "pause-worker"
    POISON = "poison"
    KILL_LEADER = "kill-leader"
    PAUSE_LEADER = "pause-leader"
    KILL_REAPERS = "kill-reapers"
    PAUSE_REDIS = "pause-redis"
    PAUSE_CLIENTS = "pause-clients"
    FAIL_OVER = "fail-over"
    SHUT_DOWN = "shut-down"
    LONG_JOBS = "long-jobs"


_SECONDS = r"[0-9]{1,5}(?:\.[0-9]+)?"
_JOBS = "[1-9][0-9]{0,3}|10000"
_WORKERS = f"half|all|{_JOBS}|w[1-9][0-9]{{0,3}}(?:,w[1-9][0-9]{{0,3}})*"


@dataclass(frozen=True, slots=True)
class Form:
    """How a kind is written (``kind[:amount]@seconds[+seconds]``), and what it does."""

    example: str
    does: str
    """For people, as in ``--help``."""
    amount: str = ""
    """Pattern of the word after the colon; empty = none may follow."""
    default: str = "1"
    """The amount where none is written."""
    lasts: Literal["", "optional", "required"] = ""
    """Whether ``+seconds`` may follow."""
    hits: Literal["", "leaders", "redis"] = ""
    """Other processes than workers that it hits. While ``redis`` is hit, it does not answer or takes no writes."""

    @property
    def pattern(self) -> str:
        """Regular expression of a fault, with the groups ``amount``, ``at`` and ``lasts``. No fault lasts for 0 s."""
        amount = rf"(?::(?P<amount>{self.amount}))?" if self.amount else "(?P<amount>(?!))?"
        lasts = rf"(?:\+(?=.*[1-9])(?P<lasts>{_SECONDS}))" if self.lasts else "(?P<lasts>(?!))"
        return rf"[^:@+]*{amount}@(?P<at>{_SECONDS}){lasts}{'' if self.lasts == 'required' else '?'}"


FORMS: Mapping[str, Form] = {
    FaultKind.KILL_WORKER: Form("kill-worker@4", "kill -9 of the worker with the most jobs in flight *"),
    FaultKind.KILL_WORKERS: Form(
        "kill-workers:half@4", "kill -9 of half the workers at once; also :all, :2, :w1,w3", _WORKERS
    ),
    FaultKind.PAUSE_WORKER: Form(
        "pause-worker@4+6", "SIGSTOP of the worker with the most jobs in flight for 6 s *", lasts="required"
    ),
    FaultKind.POISON: Form("poison@4", "a job that kills every worker that runs it (poison:3@4: three jobs)", _JOBS),
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
        "writes|all",
        "writes",
        lasts="required",
        hits="redis",
    ),
    FaultKind.FAIL_OVER: Form(
        "fail-over@4+1", "FAILOVER to a replica that is 1 s behind, and back", lasts="required", hits="redis"
    ),
    FaultKind.SHUT_DOWN: Form(
        "shut-down@4+1",
        "SIGTERM of Redis, whose replica is 1 s behind; it starts again with its RDB file",
        lasts="required",
        hits="redis",
    ),
    FaultKind.LONG_JOBS: Form("long-jobs:20@4+6", "no fault: 20 more jobs at once, 6 s each", _JOBS, lasts="required"),
}
NEEDS_REPLICA = frozenset({FaultKind.FAIL_OVER, FaultKind.SHUT_DOWN})
AFTER_PAUSE_S = 10.0
"""How long after an outage of Redis processes may still fail because of it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject.

    ``at`` counts from the first job. Kinds whose text ends with ``*`` wait until there is a process that they can hit.
    All others come exactly then.
    """

    kind: str
    at: timedelta
    amount: str = "1"
    """The word after the colon, or the default of its form."""
    lasts: timedelta = timedelta(0)
    """0 for a kind that is over at once, or never."""

    def __str__(self) -> str:
        amount = f":{self.amount}" if self.amount != "1" else ""
        return f"{self.kind}{amount}@{self.at.total_seconds():g}{f'+{self.lasts_s:g}' if self.lasts else ''}"

    def slots(self, of: int) -> set[str]:
        """Return the slots of the workers to hit, out of ``of``: the named ones, or the first. Half is rounded up."""
        if self.amount.startswith("w"):
            return set(self.amount.split(","))
        shares = {"half": (of + 1) // 2, "all": of}
        return {f"w{n}" for n in range(1, (shares.get(self.amount) or min(of, int(self.amount))) + 1)}

    @property
    def lasts_s(self) -> float:
        """How long it lasts, in seconds."""
        return self.lasts.total_seconds()

    @property
    def over_at(self) -> timedelta:
        """When it is over by itself."""
        return self.at + self.lasts


def parse_fault(text: str, forms: Mapping[str, Form] = FORMS) -> Fault:
    """Read ``kind[:amount]@seconds[+seconds]`` of one of ``forms``. Raises ConfigurationError."""
    text = text.strip()
    name = re.split("[:@+]", text, maxsplit=1)[0]
    kind = next((kind for kind in forms if kind == name), None)
    if kind is None:
        raise ConfigurationError(f"there is no --fault {name!r}{did_you_mean(name, map(str, forms))}")
    form = forms[kind]
    found = re.fullmatch(form.pattern, text)
    if not found:
        raise ConfigurationError(
            f"--fault {text!r} cannot be read. Write it like '{form.example}', for 4 seconds after the first job: "
            f"{form.does.removesuffix(' *')}."
        )
    at, lasts = (timedelta(seconds=float(found[name] or 0)) for name in ("at", "lasts"))
    return Fault(kind, at, found["amount"] or form.default, lasts)


DEFAULT_FAULTS = tuple(map(parse_fault, ("kill-worker@1.5", "poison@5", "kill-leader@8", "pause-leader@12")))
"""One of each, far enough apart for ``max_deliveries`` 3. The killed worker's jobs have run again before the poison job
comes (visibility timeout and longest job: 3.35 s), so no other job crashes more than twice before it runs alone."""

DEMO_FAULTS = tuple(map(parse_fault, ("kill-worker@1", "poison@4.5", "kill-leader@7", "pause-leader@9.5")))
"""The same, a little closer together, so that three acts take about a minute."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """The fault that is played where one was asked for that needs reapers, and none run."""

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
