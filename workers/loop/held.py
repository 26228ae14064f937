"""Deliveries in our hands, and what the loop knows of each. Their state changes by the verbs here, and nowhere else."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from time import monotonic

from workers.loop.job import Job
from workers.protocol.messages import FIELD_TRACEPARENT, FIELD_VISIBILITY_MS, whole_number
from workers.telemetry.deliveries import JobTrace

TRACEPARENT_BYTES = 55
_EVEN_DIGITS = b"02468ace"


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
    """A stream that deliveries are read from, and what this process holds of it."""

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

    def hold(self, held: "Held") -> None:
        """Note that a delivery is in our hands from now on."""
        self.deliveries[held.raw_entry_id] = held

    def holds(self, held: "Held") -> bool:
        """Tell whether a delivery is in our hands."""
        return self.deliveries.get(held.raw_entry_id) is held

    def forget(self, held: "Held") -> None:
        """Note that a delivery is settled; a later one of the same entry stays."""
        if self.deliveries.get(held.raw_entry_id) is held:
            del self.deliveries[held.raw_entry_id]


class Held(Job):
    """A delivery in our hands. The handler sees the job in it.

    One object and not two: it is made, looked at and thrown away for every job (see decision 17). All of it happens in
    the event loop, except `prove`, which the heartbeat's thread calls, too; that thread reads all the rest.
    """

    __slots__ = ("interruption", "proven", "runner", "source", "stage", "started", "trace")

    stage: Stage
    interruption: Interruption | None
    runner: "asyncio.Task[None] | None"
    """The task that runs the handler."""
    started: float
    """When the handler began, on the monotonic clock; not set before."""
    proven: float
    """When Redis last heard of the delivery from us, on the monotonic clock: never later than it really was."""
    trace: JobTrace | None
    """What is to be told of the delivery as a span; None = nothing."""

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
        super().__init__(source.stream, entry_id, flat, times_delivered, max_deliveries, delivered_ms, source.timeout_s)
        self.source = source
        self.proven = proven
        self.stage = QUEUED
        self.interruption = self.runner = self.trace = None

    # ---- what happens to it

    def begin(self, now: float, runner: "asyncio.Task[None] | None") -> None:
        """Note that the handler begins."""
        self.started = now
        self.runner = runner
        self.stage = RUNNING  # last: another thread looks at it

    def prove(self, asked_at: float) -> None:
        """Note that Redis has heard of the delivery, by a call that was made then."""
        self.proven = asked_at

    def interrupt(self, why: Interruption) -> None:
        """Take the delivery from its handler, which is cancelled, once; a thread goes on by itself."""
        if self.interruption is None and self.stage is RUNNING and self.runner is not None:
            self.runner.cancel()
        self.interruption = why

    def take_back_cancellation(self) -> int:
        """Undo that an interruption has cancelled the runner; return how many others cancel it, too."""
        return 1 if self.runner is None else self.runner.uncancel()

    def lose(self) -> bool:
        """Note that the delivery is not ours any more. Returns False where it has ended, and perhaps been settled."""
        if self.stage is ENDED or not self.source.holds(self):
            return False
        self.source.forget(self)
        self.proven = 0.0  # where it is queued, whoever takes it looks again
        self.interrupt(Interruption.LOST)
        return True

    def end(self) -> None:
        """Note that there is a verdict."""
        self.stage = ENDED

    def keep(self) -> None:
        """Note that it could not be settled, stays pending, and is not to be run again here."""
        self.source.kept.add(self.raw_entry_id)

    def tell(self, trace: JobTrace) -> None:
        """Note that the delivery is to be told of."""
        self.trace = trace

    async def extend(self) -> bool:
        """See `Job.extend`."""
        if self.source.prove is None:
            return await super().extend()
        return self.source.holds(self) and await self.source.prove(self)

    # ---- what is asked of it

    def is_overdue(self, now: float) -> bool:
        """Tell whether the handler runs for longer than it may."""
        return self.stage is RUNNING and now >= self.started + self.timeout_s

    def ran_ms(self) -> int:
        """Return for how many milliseconds the handler has been running; 0 = it does not."""
        return round((monotonic() - self.started) * 1000) if self.stage is RUNNING else 0

    @property
    def payload_bytes(self) -> int:
        """Size of all fields, in bytes."""
        return sum(map(len, self._flat))

    @property
    def own_visibility_ms(self) -> int:
        """How long a visibility timeout the producer asked for (``reaper.visibility_ms``); 0 = none of its own."""
        if FIELD_VISIBILITY_MS not in self._flat:
            return 0  # nearly always, and found out fast
        return whole_number(self.reserved.get(FIELD_VISIBILITY_MS), 0)

    @property
    def is_unsampled(self) -> bool:
        """Tell at a glance whether the job's producer does not sample its trace; asked for every job that is read."""
        flat = self._flat
        try:
            place = flat.index(FIELD_TRACEPARENT)
        except ValueError:
            return False
        if place % 2:
            return False  # it is some field's value
        traceparent = flat[place + 1]
        return len(traceparent) == TRACEPARENT_BYTES and traceparent[-1] in _EVEN_DIGITS
