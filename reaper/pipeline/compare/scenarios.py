"""The scenarios of a comparison, which are situations with faults at given moments. Pure."""

from dataclasses import dataclass, replace
from datetime import timedelta

from reaper.drill.faults import parse_fault, parse_long_jobs
from workers.protocol.errors import ConfigurationError
from workers.runtime.settings_errors import did_you_mean


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to recover."""

    words: tuple[str, ...]
    """The drill's options that make it."""
    needs_claim: bool = False
    """It needs a server with ``XREADGROUP … CLAIM``."""


WAYS = {
    "reaper/stream": Mode(("--recovery", "reaper")),
    "reaper/in-place": Mode(("--recovery", "reaper", "--policy", "in-place"), needs_claim=True),
    "embedded/stream": Mode(("--recovery", "embedded")),
    "embedded/in-place": Mode(("--recovery", "embedded", "--policy", "in-place"), needs_claim=True),
    "none": Mode(("--recovery", "none")),
}
MODES = tuple(WAYS)
LONGEST_S = 900
"""Seconds after which a drill is ended."""
FAULT_AT_S = 4.0
"""Seconds from the first job to the first harm. Its preparations come a little earlier."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A situation that every mode has to cope with."""

    name: str
    title: str
    faults: tuple[str, ...]
    """As `reaper drill` reads them."""
    long_jobs: tuple[str, ...] = ()
    """Jobs that are added at once."""
    options: tuple[str, ...] = ()
    """More options of the drill."""
    restarts: bool = True
    """Its faults interrupt jobs, which have to start again. Without a restart, the scenario did not test recovery."""

    @property
    def words(self) -> list[str]:
        """The drill's options that make this situation."""
        named = [("--fault", fault) for fault in self.faults or ("none",)]
        named += [("--long-jobs", jobs) for jobs in self.long_jobs]
        return [*(word for pair in named for word in pair), *self.options]


def moved(scenario: Scenario, at_s: float) -> Scenario:
    """Return the scenario with its harm at another moment, at which jobs of the trace are in flight.

    Raises ConfigurationError if a fault would come before the first job.
    """
    by = timedelta(seconds=at_s - FAULT_AT_S)
    faults = [replace(fault, at=fault.at + by) for fault in map(parse_fault, scenario.faults)]
    added = [replace(jobs, at=jobs.at + by) for jobs in map(parse_long_jobs, scenario.long_jobs)]
    if any(fault.at < timedelta(0) for fault in (*faults, *added)):
        raise ConfigurationError(
            f"--fault-at {at_s:g} is too early for {scenario.name!r}. Write {FAULT_AT_S:g} or more."
        )
    return replace(
        scenario, faults=tuple(map(str, faults)), long_jobs=tuple(f"{jobs.amount}{jobs.when}" for jobs in added)
    )


IDLE_S = 30
IDLE = Scenario(
    "idle",
    "Nothing to do",
    (),
    (f"1@{IDLE_S}+0.1",),
    ("--visibility-timeout", "30", "--lease-ttl", "10"),
    restarts=False,
)
"""Measures the cost of waiting, with the timeouts of production. One job begins the wait, and another ends it."""

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("one-crash", "One worker crashes", ("kill-worker@4",)),
        Scenario(
            "half-the-pool",
            "Half the pool crashes at once, with 10,000 jobs in flight",
            ("kill-worker:half@4",),
            ("10000@1+4",),
            ("--concurrency", "2500", "--visibility-timeout", "5"),
        ),
        Scenario(
            "slow-but-alive",
            "Jobs that take three visibility timeouts, and live",
            (),
            ("20@2+6",),
            restarts=False,
        ),
        Scenario("poison", "A poison job among bystanders", ("poison@4",)),
        Scenario(
            "holder-and-workers",
            "The holder of the lease dies with half the workers",
            ("kill-holder@4", "kill-worker:half@4"),
            ("40@3+2",),
        ),
        Scenario(
            "no-reaper", "No reaper is alive for 20 s, and a worker crashes", ("kill-reapers@3+20", "kill-worker@4")
        ),
        Scenario("redis-pause", "Redis stands still for 10 s", ("pause-redis@4+10",), restarts=False),
        IDLE,
    )
}


def choose_scenarios(names: tuple[str, ...]) -> list[Scenario]:
    """Return the scenarios of these names, or all without names. Raises ConfigurationError."""
    for name in names:
        if name not in SCENARIOS:
            raise ConfigurationError(f"unknown --scenario {name!r}{did_you_mean(name, SCENARIOS)}")
    return [scenario for name, scenario in SCENARIOS.items() if name in names or not names]
