"""The deliveries in our hands, with the loop's knowledge of each.

Their state changes by the verbs here, and nowhere else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from workers.loop.job import Job
from workers.protocol.calls.settlement import Verdict
from workers.protocol.messages import entry_order
from workers.runtime.clock import monotonic
from workers.telemetry.deliveries import JobTrace


class Stage(Enum):
    """How far a delivery has come in this process."""

    QUEUED = auto()
    RUNNING = auto()
    ENDED = auto()
    """There is a verdict, which waits to be settled or has been."""


QUEUED, RUNNING, ENDED = Stage


class Interruption(Enum):
    """Why a delivery was taken from its handler."""

    TIMEOUT = auto()
    """It ran longer than the job's timeout."""
    LOST = auto()
    """It is not ours any more: an extension was refused."""


@dataclass(slots=True, eq=False)
class Source:
    """A stream with the deliveries that this process has read from it and still holds."""

    key: str
    """``orders``, or ``{orders}:retry:billing``."""
    stream: str
    """``orders`` in both cases."""
    timeout_s: float = inf
    """How long a job may run that says nothing about it, in seconds."""
    prove: "Callable[[Held], Awaitable[bool]] | None" = None
    """Proves that a delivery is alive; tells whether it is ours still."""
    deliveries: "dict[bytes, Held]" = field(default_factory=dict)
    """By entry ID: everything that is queued, running or waits to be settled here."""
    kept: set[bytes] = field(default_factory=set)
    """Entry IDs that could not be settled and stay pending: this process does not run them again."""
    newest: tuple[int, int] = (0, 0)
    """The highest entry ID that a plain read has brought."""
    may_be_behind: bool = True
    """The server may have lost that it handed out the latest entries: plain reads may bring them anew."""
    settled: "list[Sequence[Held]] | None" = None
    """What was settled since a read that is under way was asked for, by the call; None where none is."""
    settled_ids: set[tuple[bytes, int]] = field(default_factory=set)
    """The same, where it was asked for: entry IDs, and how often each was delivered."""

    def is_asked(self, *, claims: bool) -> None:
        """Note that a read begins.

        Its reply may hold deliveries that are settled from now on, because they were handed out before.
        """
        if claims or self.may_be_behind:
            self.settled = []
            self.settled_ids.clear()

    def has_brought(self, first: bytes, last: bytes) -> None:
        """Note what a plain read has brought. Entries behind all earlier reads cannot have been settled."""
        self.may_be_behind, self.newest = entry_order(first) <= self.newest, max(self.newest, entry_order(last))
        if not self.may_be_behind:
            self.settled = None

    def is_read(self) -> None:
        """Note that what a read has brought is in our hands."""
        self.settled = None

    def hold(self, held: "Held") -> None:
        """Note that a delivery is in our hands from now on."""
        self.deliveries[held.job.raw_entry_id] = held

    def holds(self, held: "Held") -> bool:
        """Tell whether a delivery is in our hands."""
        return self.deliveries.get(held.job.raw_entry_id) is held

    def comes_again(self, entry_id: bytes, times_delivered: int, asked_at: float) -> bool:
        """Tell whether what was read, by a call that was made then, is a delivery that is in our hands already.

        A server that has lost its latest writes hands it out anew. With the same count, no call could tell the two
        apart, so the one in hand goes on, for both. A delivery with another count is lost, and is taken from its
        handler. A settlement since then, with the same count, counts for both.
        """
        held = self.deliveries.get(entry_id)
        if held is None:
            return self.settled is not None and self._was_settled(entry_id, times_delivered)
        if held.job.times_delivered == times_delivered:
            held.came_again(asked_at)
            return True
        if not held.lose():
            self.forget(held)
        return False

    def in_flight(self) -> list[bytes]:
        """Return the entry IDs of our deliveries, which must not be taken for deliveries that never arrived."""
        return [*self.deliveries, *self.kept]

    def forget(self, held: "Held") -> None:
        """Note that a delivery is settled. A later one of the same entry stays."""
        entry_id = held.job.raw_entry_id
        if self.deliveries.get(entry_id) is held:
            del self.deliveries[entry_id]

    def forget_all(self, answered: "Iterable[Held]") -> None:
        """Note the same of many, after Redis has answered. `are_settled` is called for those that are done."""
        deliveries = self.deliveries
        for held in answered:
            entry_id = held.job.raw_entry_id
            if deliveries.get(entry_id) is held:
                del deliveries[entry_id]

    def are_settled(self, done: "Sequence[Held]") -> None:
        """Note what Redis says to have done."""
        if self.settled is not None:
            self.settled.append(done)

    def _was_settled(self, entry_id: bytes, times_delivered: int) -> bool:
        for done in self.settled or ():
            self.settled_ids.update((held.job.raw_entry_id, held.job.times_delivered) for held in done)
        self.settled = []
        return (entry_id, times_delivered) in self.settled_ids

    async def extend(self, job: Job) -> bool:
        """See `Job.extend`."""
        if self.prove is None:
            raise RuntimeError("only a job that a worker runs can be extended")
        held = self.deliveries.get(job.raw_entry_id)
        return held is not None and held.job is job and await self.prove(held)


@dataclass(init=False, repr=False, eq=False, slots=True)
class Held:
    """A delivery in our hands, made of the job and the loop's notes on it.

    All of it happens in the event loop, except `prove`, which the heartbeat's thread also calls. That thread only reads
    the rest. Made and thrown away for every job.
    """

    job: Job
    source: Source
    stage: Stage
    interruption: Interruption | None
    runner: "asyncio.Task[None] | None"
    """The task that runs the handler, while it does: only then there is something to cancel."""
    started: float
    """When the handler began, on the monotonic clock; minus infinity before that."""
    again_at: float
    """When the same delivery came once more, on the monotonic clock: what was refused before may be ours by now."""
    runs_from: float
    """When heartbeats begin to report that the handler runs, on the monotonic clock (W8); minus infinity = at once."""
    proven: float
    """When Redis last heard of the delivery from us, on the monotonic clock: never later than it really was."""
    verdict: Verdict
    """How it ended; not set before."""
    returning: asyncio.Event | None
    """Set once it is known whether a delivery that vanished is ours again; None = it is not being asked."""
    run_ms: int
    """For how many milliseconds it was in its slot; not set before it has ended."""
    trace: JobTrace | None
    """What is to be told of the delivery as a span; None = nothing."""
    has_lost_payload: bool
    """Somebody has deleted its payload from the stream: nobody else can ever run it."""

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
        self.job = Job(source, entry_id, flat, times_delivered, max_deliveries, delivered_ms)
        self.source = source
        self.proven = proven
        self.started = self.again_at = self.runs_from = -inf
        self.stage = QUEUED
        self.interruption = self.runner = self.trace = self.returning = None
        self.has_lost_payload = False

    # ---- its changes

    def begin(self, now: float, runner: "asyncio.Task[None] | None") -> None:
        """Note that the handler begins."""
        self.started = now
        self.runner = runner
        self.stage = RUNNING  # last, because another thread looks at it

    def prove(self, asked_at: float) -> None:
        """Note that Redis has heard of the delivery, by a call that was made then."""
        self.proven = asked_at

    def came_again(self, asked_at: float) -> None:
        """Note that the same delivery was read once more, by a call that was made then."""
        self.again_at = monotonic()
        if self.stage is not ENDED:
            self.prove(max(self.proven, asked_at))

    def interrupt(self, why: Interruption) -> None:
        """Take the delivery from its handler, which is cancelled once. A thread goes on by itself."""
        if self.interruption is None and self.stage is RUNNING and self.runner is not None:
            self.runner.cancel()
        self.interruption = why

    def take_back_cancellation(self) -> None:
        """Undo that an interruption has cancelled the runner."""
        if self.runner is not None:
            self.runner.uncancel()

    def lose(self) -> bool:
        """Note that the delivery is not ours any more. Returns False where it has ended, and perhaps been settled."""
        if self.stage is ENDED or not self.source.holds(self):
            return False
        self.source.forget(self)
        self.proven = -inf  # if it is queued, the runner that takes it looks again
        self.interrupt(Interruption.LOST)
        return True

    def end(self, verdict: Verdict, began: float, now: float) -> None:
        """Note that there is a verdict now, on a delivery that came into its slot then."""
        self.stage = ENDED
        self.verdict = verdict
        self.run_ms = int((now - began) * 1000 + 0.5)

    def keep(self) -> None:
        """Note that it could not be settled, stays pending, and is not to be run again here."""
        self.source.kept.add(self.job.raw_entry_id)

    def follow(self, trace: JobTrace) -> None:
        """Note that the delivery is to be reported."""
        self.trace = trace

    # ---- its state

    def is_overdue(self, now: float) -> bool:
        """Tell whether the handler runs for longer than it may."""
        return self.stage is RUNNING and now >= self.started + self.job.timeout_s

    @property
    def deadline(self) -> float:
        """The moment when the handler has run too long. Only after its start."""
        return self.started + self.job.timeout_s

    def may_return(self) -> bool:
        """Return whether it is still in our hands, has no outcome yet, and no call asks for it already."""
        return self.stage is not ENDED and self.returning is None and self.source.holds(self)

    def ran_ms(self) -> int:
        """Return for how many milliseconds the handler has been running, or 0."""
        return round((monotonic() - self.started) * 1000) if self.stage is RUNNING else 0


def hold_all(deliveries: Iterable[Held]) -> None:
    """Note that deliveries are in our hands from now on, each of its source."""
    for held in deliveries:
        held.source.deliveries[held.job.raw_entry_id] = held
