"""A story as data, with its processes, jobs and faults. Printed in sentences.

It contains no consequences. `tests.simulation.world` plays it, and draws delays of messages and pauses of the product
from the story's seed, too.
"""

from dataclasses import dataclass, field
from typing import Any

from reaper.settings import LEASES
from tests.simulation.plays import Play

REAPER, EMBEDDED = "reaper", "embedded"
IN_PLACE = "in-place"
SHORTEST_LEASE_S = 20.0
HOLDER, ITSELF, OFFERED_TO = "the holder of the lease", "the process of that moment", "who is offered the lease"
"""Whom a fault befalls is found out when it happens."""
WRITE = "write"
"""Denied in place of a command: a server that lacks replicas takes no writes (`min-replicas-to-write`)."""
VERSIONS = ("6.2", "7.0", "8.2", "8.4", "8.6", "8.8")


@dataclass(frozen=True, slots=True)
class Setting:
    """The cast at the beginning of the story. Durations are seconds."""

    version: str = "7.0"
    recovery: str = REAPER
    redelivery: str = "stream"
    visibility_s: float = 30.0
    max_deliveries: int = 3
    lease_s: float = 10.0
    workers: int = 2
    bare_workers: int = 0
    replicas: int = 2
    concurrency: int = 4
    named: bool = False
    """Workers have names of their own, and adopt."""
    delete_settled: bool = False
    journal: bool = True
    own_timeout: bool = True
    """Workers know the visibility timeout; else they learn it from the group settings."""

    @property
    def longest_lease_s(self) -> float:
        """How long a lease lasts here at most, by the visibility timeout at the beginning."""
        return min(self.lease_s, self.visibility_s / LEASES)

    @property
    def processes(self) -> int:
        """The number of workers, replicas, and producers."""
        return self.workers + self.bare_workers + self.replicas + 1

    @property
    def sentence(self) -> str:
        """The setting, in words."""
        named = "named " if self.named else ""
        crew = [f"{self.workers} {named}workers ({self.concurrency} slots each)"]
        crew += [f"{self.bare_workers} bare workers"] if self.bare_workers else []
        crew += [f"{self.replicas} replicas (lease {self.longest_lease_s:g} s)"] if self.recovery == REAPER else []
        return (
            f"Redis {self.version}; recovery {self.recovery}, policy {self.redelivery}, visibility timeout "
            f"{self.visibility_s:g} s, {self.max_deliveries} deliveries; {', '.join(crew)}."
        )


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that a producer enqueues. Instants and durations are seconds."""

    at: float
    number: int
    play: Play
    delay: float = 0.0
    timeout: float | None = None
    bare: bool = False
    """By a plain ``XADD``."""

    @property
    def name(self) -> str:
        """Its ID, if its producer gives it one. None is a part of another."""
        return f"job-{self.number:03}"

    @property
    def sentence(self) -> str:
        """The job, in words."""
        acts = ", then ".join(act.sentence for act in self.play)
        how = "by XADD" if self.bare else f"with a delay of {self.delay:g} s" if self.delay else ""
        limit = f" (timeout {self.timeout:g} s)" if self.timeout else ""
        return f"{self.name} is enqueued{' ' + how if how else ''}: {acts}{limit}."


@dataclass(frozen=True, slots=True)
class Step:
    """A fault, and its target. `tests.simulation.faults` knows what and how."""

    at: float
    kind: str
    who: str = ""
    seconds: float = 0.0
    value: Any = None
    on: str = ""
    """It waits from ``at`` on for a moment (`tests.simulation.reached`), and happens then; '' = at that instant."""


@dataclass(frozen=True, slots=True)
class Story:
    """All that is to be played."""

    seed: int
    setting: Setting
    jobs: tuple[NewJob, ...]
    steps: tuple[Step, ...]
    length_s: float = field(default=0.0)
    """When the faults end."""

    @property
    def has_replicas(self) -> bool:
        """Tell whether replicas recover, from the beginning or after a switch of modes."""
        return self.setting.recovery == REAPER or any(step.kind == "mode" for step in self.steps)

    @property
    def least_limit(self) -> int:
        """The lowest limit on deliveries that there will have been."""
        changed: list[int] = [step.value["max_deliveries"] for step in self.steps if step.kind == "limit"]
        return min((self.setting.max_deliveries, *changed))
