"""The deliveries that this process has in flight, and their state.

Only the methods here change the state.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from opentelemetry.trace import Span

from workers.loop.job import Job
from workers.protocol.calls.moves import Verdict
from workers.protocol.messages import RESERVED_PREFIX
from workers.runtime.clock import monotonic


class Stage(Enum):
    """The progress of a delivery in this process. An ended one has a verdict."""

    QUEUED = auto()
    RUNNING = auto()
    ENDED = auto()


QUEUED, RUNNING, ENDED = Stage


class Interruption(Enum):
    """The reason why a handler has to stop."""

    TIMEOUT = auto()
    """The handler ran longer than the job's timeout."""
    LOST = auto()
    """Redis rejected an extension: the delivery was recovered."""


@dataclass(slots=True, eq=False)
class Source:
    """A stream, and the deliveries of it that this process has in flight."""

    key: str
    """``orders``, or ``{orders}:retry:billing``."""
    stream: str
    """``orders`` in both cases."""
    timeout_s: float = inf
    """Timeout of a job without a timeout of its own, in seconds."""
    extend: "Callable[[Delivery], Awaitable[bool]] | None" = None
    """Sends a heartbeat for a delivery. Returns False if it was recovered."""
    deliveries: "dict[bytes, Delivery]" = field(default_factory=dict)
    """Queued and running deliveries, and those that wait for their settlement, by entry ID."""
    kept: set[bytes] = field(default_factory=set)
    """IDs of undeliverable entries. They stay pending, and this process does not run them again."""

    def hold(self, deliveries: "Iterable[Delivery]") -> None:
        """Add deliveries."""
        self.deliveries.update({job.raw_entry_id: job for job in deliveries})

    def holds(self, job: "Delivery") -> bool:
        """Return whether this delivery is in flight here."""
        return self.deliveries.get(job.raw_entry_id) is job

    def comes_again(self, entry_id: bytes, times_delivered: int, asked_at: float) -> bool:
        """Return whether an entry of a read, sent at ``asked_at``, is a delivery that is in flight here (rule W5).

        A server that has lost its latest writes delivers it again. With the same count, no call can distinguish the
        two, so the present one goes on. With another count, the present one is lost, and its handler has to stop.
        """
        job = self.deliveries.get(entry_id)
        if job is None:
            return False
        if job.times_delivered == times_delivered:
            if job.stage is not ENDED:
                job.proven = max(job.proven, asked_at)
            return True
        if not job.lose():
            self.forget([job])
        return False

    def in_flight(self) -> list[bytes]:
        """Return the entry IDs of our deliveries, so that adoption does not run them again."""
        return [*self.deliveries, *self.kept]

    def forget(self, settled: "Iterable[Delivery]") -> None:
        """Remove settled deliveries. Later deliveries of the same entries stay."""
        deliveries = self.deliveries
        for job in settled:
            entry_id = job.raw_entry_id
            if deliveries.get(entry_id) is job:
                del deliveries[entry_id]


@dataclass(init=False, repr=False, eq=False, slots=True)
class Delivery(Job):
    """A delivery in flight, which is the job and its state in this process. Its handler uses only the job.

    Only the event loop changes it, except `proven`, which the heartbeat's thread also sets. That thread reads the rest.
    There is one for every job, and no other object.
    """

    source: Source
    stage: Stage
    interruption: Interruption | None
    runner: "asyncio.Task[None] | None"
    """The task that runs the handler. None if there is no task to cancel."""
    started: float
    """When the handler began, on the monotonic clock; minus infinity before that."""
    runs_from: float
    """When heartbeats begin to report that the handler runs, on the monotonic clock (W8); minus infinity = at once."""
    proven: float
    """When the last heartbeat that Redis answered was sent, on the monotonic clock."""
    verdict: Verdict
    """Not set before the end."""
    run_ms: int
    """Time in its slot in ms. Not set before the end."""
    span: Span | None
    """None if the delivery is not traced."""
    ended_ns: int
    """When the handler of a traced delivery ended. 0 before."""
    has_lost_payload: bool
    """A third party deleted the entry, so no other worker can run the job."""

    def __init__(
        self,
        source: Source,
        entry_id: bytes,
        flat: Sequence[bytes],
        times_delivered: int,
        max_deliveries: int,
        delivered_ms: int,
        proven: float,
    ) -> None:
        self.source = self._origin = source
        self.raw_entry_id = self.raw_id = entry_id
        self._flat = flat
        self.times_delivered = self.deliveries = times_delivered
        self.delivered_ms = delivered_ms
        self.timeout_s = source.timeout_s
        self.proven = proven
        self.started = self.runs_from = -inf
        self.stage = QUEUED
        self.generation = self.waits = self.hand_backs = self.copies = 0
        self.interruption = self.runner = self.span = self._first_ms = self._pairs = self._fields = None
        self.is_as_produced = True
        self.is_quarantined = self.has_lost_payload = False
        for name in flat[::2]:
            if name.startswith(RESERVED_PREFIX):
                self._read_reserved(max_deliveries)
                break

    async def extend(self) -> bool:
        """See `Job.extend`."""
        if self.source.extend is None:
            return await Job.extend(self)
        return self.source.holds(self) and await self.source.extend(self)

    # ---- its changes

    def begin(self, now: float, runner: "asyncio.Task[None] | None") -> None:
        """Note that the handler begins."""
        self.started = now
        self.runner = runner
        self.stage = RUNNING  # last, because another thread looks at it

    def interrupt(self, why: Interruption) -> None:
        """Stop the handler. Its task is cancelled once. A thread goes on."""
        if self.interruption is None and self.stage is RUNNING and self.runner is not None:
            self.runner.cancel()
        self.interruption = why

    def take_back_cancellation(self) -> None:
        """Undo the cancellation of the runner by `interrupt`."""
        if self.runner is not None:
            self.runner.uncancel()

    def lose(self) -> bool:
        """Note that the delivery was recovered. Returns False if it has ended, and may be settled."""
        if self.stage is ENDED or not self.source.holds(self):
            return False
        self.source.forget([self])
        self.proven = -inf  # a queued one is asked for before it begins
        self.interrupt(Interruption.LOST)
        return True

    def end(self, verdict: Verdict, run_ms: int) -> None:
        """Note the verdict, and how long the delivery had its slot."""
        self.stage = ENDED
        self.verdict = verdict
        self.run_ms = run_ms

    # ---- its state

    @property
    def deadline(self) -> float:
        """When the handler exceeds its timeout. Only after its start."""
        return self.started + self.timeout_s

    def is_overdue(self, now: float) -> bool:
        """Return whether the handler has exceeded its timeout."""
        return self.stage is RUNNING and now >= self.started + self.timeout_s

    def ran_ms(self) -> int:
        """Return the running time of the handler in ms, or 0."""
        return round((monotonic() - self.started) * 1000) if self.stage is RUNNING else 0
