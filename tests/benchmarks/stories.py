"""The possible stories of a job in a generated journal, step by step.

It is a small and pure table that Spark joins with the jobs.

A moment is a sum of multiples of a job's own times, plus some milliseconds. Those times are its visibility timeout, run
time, wait in the queue and recovery delay, counted from its enqueueing. So one table of steps serves every job.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from workers.protocol.events import EventName


class Moment(NamedTuple):
    """Times since the job was enqueued, each a multiple of one of the job's own."""

    timeouts: int = 0
    runs: int = 0
    waits: int = 0
    delays: int = 0
    ms: int = 0

    def plus(self, **more: int) -> "Moment":
        """Return a later moment."""
        return Moment(*(here + more.get(name, 0) for name, here in zip(Moment._fields, self, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One event of a job."""

    event: EventName
    by: str
    """Who writes it: ``worker``, ``replica`` or ``operator``."""
    at: Moment
    entry: Moment
    """When the entry was made that the event is about: its ID is this time."""
    delivery: int
    generation: int
    delivered: Moment | None = None
    """When the delivery began, where a worker tells."""
    run: Moment | None = None
    idle: Moment | None = None
    new_entry: Moment | None = None
    reason: str | None = None
    verb: str | None = None
    failed: bool = False
    """It names the error that the handler raised."""


@dataclass
class _Teller:
    """Writes the steps of a story, keeping the time."""

    steps: list[Step] = field(default_factory=list)
    now: Moment = field(default_factory=Moment)
    entry: Moment = field(default_factory=Moment)
    delivered: Moment = field(default_factory=Moment)
    delivery: int = 0
    generation: int = 0

    def _tell(self, event: EventName, by: str = "worker", **facts: Any) -> None:
        about: dict[str, Any] = {
            "at": self.now,
            "entry": self.entry,
            "delivery": self.delivery,
            "generation": self.generation,
        }
        self.steps.append(Step(event=event, by=by, **{**about, **facts}))

    def _settle(self, event: EventName, run: Moment, **facts: Any) -> None:
        self._tell(event, delivered=self.delivered, run=run, **facts)

    def deliver(self) -> Self:
        self.now = self.delivered = self.now.plus(waits=1)
        self.delivery += 1
        return self

    def ack(self) -> Self:
        self.now = self.now.plus(runs=1)
        self._settle(EventName.ACKED, Moment(runs=1))
        return self

    def fail(self, *, counts: bool = True) -> Self:
        self.now = self.now.plus(runs=1)
        verb = "nack" if counts else "retry"
        self._settle(EventName.NACKED, Moment(runs=1), failed=True, new_entry=self.now, verb=verb)
        self.entry = self.now
        self.delivery -= not counts
        return self

    def hand_back(self) -> Self:
        self.now = self.now.plus(ms=20)
        self._settle(EventName.HANDED_BACK, Moment(ms=20), new_entry=self.now)
        self.entry = self.now
        self.delivery -= 1
        return self

    def give_up(self, reason: str) -> Self:
        """A worker makes it a dead letter."""
        self.now = self.now.plus(runs=1)
        self._settle(EventName.DEAD_LETTERED, Moment(runs=1), failed=True, reason=reason)
        return self

    def _overdue(self) -> Moment:
        self.now = self.delivered.plus(timeouts=1, delays=1)
        return Moment(timeouts=1, delays=1)

    def stall(self) -> Self:
        idle = self._overdue()
        self._tell(EventName.RECOVERED, "replica", idle=idle, new_entry=self.now, reason="visibility_timeout")
        self.entry = self.now
        return self

    def stall_for_the_last_time_but_one(self) -> Self:
        idle = self._overdue()
        self._tell(EventName.QUARANTINED, "replica", idle=idle, reason="last_delivery")
        self.now = self.now.plus(ms=25)
        self._tell(EventName.RECOVERED, "replica", new_entry=self.now, reason="released")
        self.entry = self.now
        return self

    def stall_for_good(self) -> Self:
        idle = self._overdue()
        self._tell(EventName.DEAD_LETTERED, "replica", idle=idle, reason="max_deliveries")
        return self

    def stall_alive(self) -> Self:
        """It was only slow or paused. Its worker settles too late, and is rejected."""
        first, entry, delivery = self.delivered, self.entry, self.delivery
        self.stall()
        run = Moment(timeouts=1, delays=1, runs=1)
        late = first.plus(**run._asdict())
        facts: dict[str, Any] = {
            "at": late,
            "entry": entry,
            "delivery": delivery,
            "delivered": first,
            "run": run,
            "verb": "ack",
        }
        self._tell(EventName.REJECTED, **facts)
        return self

    def redrive(self) -> Self:
        letter, self.now = self.now, self.now.plus(ms=3_600_000)
        self.generation, self.delivery = self.generation + 1, 0
        self._tell(EventName.REDRIVEN, "operator", entry=letter, new_entry=self.now, reason=self.steps[-1].reason)
        self.entry = self.now
        return self

    def lose_payload(self) -> Self:
        self._overdue()
        self._tell(EventName.LOST_PAYLOAD, "replica")
        return self


@dataclass(frozen=True, slots=True)
class Story:
    """The story of ``per_million`` of a million jobs."""

    name: str
    per_million: int
    steps: Sequence[Step]


def _story(name: str, per_million: int, tell: Callable[[_Teller], _Teller]) -> Story:
    return Story(name, per_million, tuple(tell(_Teller()).steps))


_RARE = (
    _story("crashed", 15_000, lambda job: job.deliver().stall().deliver().ack()),
    _story("failed once", 10_000, lambda job: job.deliver().fail().deliver().ack()),
    _story("slow but alive", 3_000, lambda job: job.deliver().stall_alive().deliver().ack()),
    _story("handed back", 2_000, lambda job: job.deliver().hand_back().deliver().ack()),
    _story(
        "crashed twice",
        2_000,
        lambda job: job.deliver().stall().deliver().stall_for_the_last_time_but_one().deliver().ack(),
    ),
    _story("service was down", 1_500, lambda job: job.deliver().fail(counts=False).deliver().ack()),
    _story(
        "failed for good",
        2_000,
        lambda job: job.deliver().fail().deliver().fail().deliver().give_up("max_deliveries"),
    ),
    _story("rejected", 1_000, lambda job: job.deliver().give_up("rejected")),
    _story(
        "poison",
        500,
        lambda job: job.deliver().stall().deliver().stall_for_the_last_time_but_one().deliver().stall_for_good(),
    ),
    _story("redriven", 300, lambda job: job.deliver().give_up("rejected").redrive().deliver().ack()),
    _story("payload deleted", 20, lambda job: job.deliver().lose_payload()),
    _story("never ended", 10, lambda job: job.deliver()),
)

STORIES = (
    _story("went well", 1_000_000 - sum(story.per_million for story in _RARE), lambda job: job.deliver().ack()),
    *_RARE,
)
"""Every story, the common one first. The limit is three deliveries."""
