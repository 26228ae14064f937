"""Faults and their times, in the form of the command line, as ``kill-worker@4`` or ``pause-redis@5+10``. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Literal

from workers.protocol.errors import ConfigurationError
from workers.runtime.settings_errors import did_you_mean


class FaultKind(StrEnum):
    """The kinds of faults. `FORMS` has the form and the effect of each."""

    KILL_WORKER = "kill-worker"
    PAUSE_WORKER = "pause-worker"
    POISON = "poison"
    KILL_HOLDER = "kill-holder"
    PAUSE_HOLDER = "pause-holder"
    KILL_REAPERS = "kill-reapers"
    PAUSE_REDIS = "pause-redis"


LONG_JOBS = "long-jobs"
"""Further jobs at once, which the option ``--long-jobs`` adds. It is no fault."""
_SECONDS = r"[0-9]{1,5}(?:\.[0-9]+)?"
_JOBS = "[1-9][0-9]{0,3}|10000"
_WORKERS = "half|all|w[1-9][0-9]{0,3}(?:,w[1-9][0-9]{0,3})*"


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a kind (``kind[:amount]@seconds[+seconds]``), and its effect."""

    example: str
    does: str
    """The effect, for ``--help``."""
    amount: str = ""
    """Pattern of the word after the colon. Empty if no word may follow."""
    default: str = "1"
    """The amount if none is written."""
    lasts: bool = False
    """Whether ``+seconds`` follows."""
    hits: Literal["", "reapers", "redis"] = ""
    """The processes that it hits, if they are no workers. ``redis`` does not answer meanwhile, or rejects writes."""

    @property
    def pattern(self) -> str:
        """Regular expression of a fault, with the groups ``amount``, ``at`` and ``lasts``. No fault lasts for 0 s."""
        amount = rf"(?::(?P<amount>{self.amount}))?" if self.amount else "(?P<amount>(?!))?"
        lasts = rf"\+(?=.*[1-9])(?P<lasts>{_SECONDS})" if self.lasts else "(?P<lasts>(?!))?"
        return rf"[^:@+]*{amount}@(?P<at>{_SECONDS}){lasts}"


FORMS: Mapping[str, Form] = {
    FaultKind.KILL_WORKER: Form(
        "kill-worker@4", "kill -9 of the worker with the most jobs in flight; also :half, :all, :w1,w3 *", _WORKERS
    ),
    FaultKind.PAUSE_WORKER: Form(
        "pause-worker@4+6", "SIGSTOP of the worker with the most jobs in flight for 6 s *", lasts=True
    ),
    FaultKind.POISON: Form("poison@4", "a job that kills every worker that runs it (poison:3@4: three jobs)", _JOBS),
    FaultKind.KILL_HOLDER: Form("kill-holder@4", "kill -9 of the reaper that holds the lease *", hits="reapers"),
    FaultKind.PAUSE_HOLDER: Form(
        "pause-holder@4",
        "a worker is killed, then the holder is paused past its lease while it is about to recover the jobs *",
        hits="reapers",
    ),
    FaultKind.KILL_REAPERS: Form(
        "kill-reapers@4+10", "kill -9 of all reapers, which start again 10 s later", lasts=True, hits="reapers"
    ),
    FaultKind.PAUSE_REDIS: Form("pause-redis@4+10", "SIGSTOP of Redis for 10 s", lasts=True, hits="redis"),
}
LONG_JOBS_FORM = Form("long-jobs:20@4+6", "20 more jobs at once, 6 s each", _JOBS, lasts=True)
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
    """0 for a kind that is over at once."""

    def __str__(self) -> str:
        return f"{self.kind}{f':{self.amount}' if self.amount != '1' else ''}{self.when}"

    @property
    def when(self) -> str:
        """Its time, as on the command line."""
        return f"@{self.at.total_seconds():g}{f'+{self.lasts_s:g}' if self.lasts else ''}"

    def slots(self, of: int) -> set[str]:
        """Return the slots of the workers to kill, which are half (rounded up) or all of ``of``, or the named ones."""
        shares = {"half": (of + 1) // 2, "all": of}
        named = self.amount.split(",")
        return {f"w{n}" for n in range(1, shares[self.amount] + 1)} if self.amount in shares else set(named)

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
        raise ConfigurationError(f"unknown --fault {name!r}{did_you_mean(name, map(str, forms))}")
    form = forms[kind]
    found = re.fullmatch(form.pattern, text)
    if not found:
        raise ConfigurationError(
            f"cannot read --fault {text!r}. Write it like '{form.example}', for 4 seconds after the first job: "
            f"{form.does.removesuffix(' *')}."
        )
    at, lasts = (timedelta(seconds=float(found[name] or 0)) for name in ("at", "lasts"))
    return Fault(kind, at, found["amount"] or form.default, lasts)


def parse_long_jobs(text: str) -> Fault:
    """Read ``amount@seconds+seconds``. Raises ConfigurationError."""
    try:
        return parse_fault(f"{LONG_JOBS}:{text.strip()}", {LONG_JOBS: LONG_JOBS_FORM})
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace("--fault", "--long-jobs").replace(f"{LONG_JOBS}:", "")) from None


DEFAULT_FAULTS = tuple(map(parse_fault, ("kill-worker@1.5", "poison@5", "kill-holder@8", "pause-holder@12")))
"""Far enough apart for ``max_deliveries`` 3. The killed worker's jobs have run again before the poison job
comes (after at most 3.35 s), so no other job crashes more than twice before it runs alone."""

DEMO_FAULTS = tuple(map(parse_fault, ("kill-worker@1", "poison@4.5", "kill-holder@7", "pause-holder@9.5")))
"""The same, a little closer together, so that three acts take about a minute."""


def without_reapers(fault: Fault) -> Fault | None:
    """Return the fault that is played instead if no reaper runs, or None."""
    if fault.kind == FaultKind.PAUSE_HOLDER:  # it kills a worker first
        return replace(fault, kind=FaultKind.KILL_WORKER)
    return None if fault.kind in FORMS and FORMS[fault.kind].hits == "reapers" else fault
