"""What a handler gets: one job, in one of its deliveries."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from math import inf
from time import monotonic

from workers.protocol.messages import (
    FIELD_TRACEPARENT,
    FIELD_VISIBILITY_MS,
    RESERVED_PREFIX,
    Metadata,
    Pairs,
    pair_up,
    read_metadata,
    text,
    whole_number,
)
from workers.telemetry.deliveries import JobTrace

TRACEPARENT_BYTES = 55
_EVEN_DIGITS = b"02468ace"
_TOKEN_BITS = 20
_TOKEN_MASK = (1 << _TOKEN_BITS) - 1


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
    deliveries: dict[bytes, "Job"] = field(default_factory=dict)
    """By entry ID: everything that is queued, running or waits to be settled here."""
    kept: set[bytes] = field(default_factory=set)
    """Entry IDs that could not be settled and stay pending: this process does not run them again."""
    extend: "Callable[[Job], Awaitable[bool]] | None" = None
    """Proves that a delivery is alive; see `Job.extend`."""

    @property
    def is_retry(self) -> bool:
        """Tell whether it is the group's retry stream."""
        return self.key != self.stream

    def hold(self, job: "Job") -> None:
        """Note that ``job`` is in our hands from now on."""
        self.deliveries[job.raw_entry_id] = job

    def holds(self, job: "Job") -> bool:
        """Tell whether ``job`` is in our hands."""
        return self.deliveries.get(job.raw_entry_id) is job

    def forget(self, job: "Job") -> None:
        """Note that ``job`` is settled; a later delivery of the same entry stays."""
        if self.deliveries.get(job.raw_entry_id) is job:
            del self.deliveries[job.raw_entry_id]


class Job:
    """One job in one delivery. Fields are bytes, as the producer wrote them.

    Reading the fields is put off until somebody asks: what has been delivered is always settled, but a handler
    often looks at one field only.
    """

    __slots__ = (
        "_fields",
        "_flat",
        "_pairs",
        "copies",
        "delivered_ms",
        "deliveries",
        "first_ms",
        "generation",
        "interruption",
        "proven",
        "raw_entry_id",
        "raw_id",
        "runner",
        "source",
        "stage",
        "started",
        "timeout_s",
        "times_delivered",
        "trace",
        "waits",
    )

    deliveries: int
    """Number of this delivery, from 1; deliveries of earlier entries of the job count too."""
    generation: int
    """How often the job was redriven from the dead letters."""
    waits: int
    """Retries in a row before this delivery that did not count."""
    first_ms: int
    """When the job was first enqueued, in ms since the epoch, on the server's clock."""
    delivered_ms: int
    """When this delivery reached the worker, in ms since the epoch, on the server's clock."""
    times_delivered: int
    """How often this entry was delivered, as the pending entries list counts."""
    copies: int
    """How often the job was copied to a new entry: by recoveries, retries, redrives."""

    # What this process does with it. Written in the event loop, except `proven`; the heartbeat's thread reads it.
    stage: Stage
    runner: "asyncio.Task[None] | None"
    """The task that runs the handler."""
    started: float
    """When the handler began, on the monotonic clock; not set before."""
    timeout_s: float
    """How long the handler may run."""
    proven: float
    """When Redis last heard of the delivery from us, on the monotonic clock: never later than it really was."""
    interruption: Interruption | None
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
        proven: float | None = None,
    ) -> None:
        self.source = source
        self.raw_entry_id = self.raw_id = entry_id
        self.times_delivered = self.deliveries = times_delivered
        self.generation = self.waits = self.copies = 0
        self.first_ms = int(entry_id.partition(b"-")[0])  # `entry_ms`, at half its cost
        self.delivered_ms = delivered_ms
        self._flat = flat
        self._pairs: Pairs | None = None
        self._fields: dict[bytes, bytes] | None = None
        self.stage = QUEUED
        self.interruption = self.runner = self.trace = None
        self.proven = monotonic() if proven is None else proven
        self.timeout_s = source.timeout_s
        for name in flat[::2]:
            if name.startswith(RESERVED_PREFIX):
                self._take(read_metadata(entry_id, zip(flat[::2], flat[1::2], strict=False)), max_deliveries)
                break

    def _take(self, metadata: Metadata, max_deliveries: int) -> None:
        self.raw_id = metadata.job_id
        # Cut as in prelude.lua: whatever a producer wrote there, every entry is executed at least once.
        self.deliveries = min(metadata.deliveries, max_deliveries - 1) + self.times_delivered
        self.generation = metadata.generation
        self.waits = metadata.waits
        self.first_ms = metadata.first_ms
        self.copies = metadata.copies
        if metadata.timeout_ms:
            self.timeout_s = metadata.timeout_ms / 1000

    @property
    def id(self) -> str:
        """The job's ID: the same in every delivery."""
        return text(self.raw_id)

    @property
    def entry_id(self) -> str:
        """ID of the stream entry that carries this delivery."""
        return text(self.raw_entry_id)

    @property
    def stream(self) -> str:
        """Name of the stream the job was enqueued in."""
        return self.source.stream

    @property
    def pairs(self) -> Pairs:
        """The user's fields in their order, duplicates included; ours (``reaper.…``) are left out."""
        if self._pairs is None:
            self._pairs = [pair for pair in pair_up(self._flat) if not pair[0].startswith(RESERVED_PREFIX)]
        return self._pairs

    @property
    def fields(self) -> dict[bytes, bytes]:
        """The user's fields by name; of duplicates the last one."""
        if self._fields is None:
            self._fields = dict(self.pairs)
        return self._fields

    def value_of(self, name: bytes) -> bytes | None:
        """Return the value of one field, of duplicates the last one, or None; faster than `fields` for one of many."""
        names = self._flat[-2::-2]
        return self._flat[-1 - 2 * names.index(name)] if name in names else None

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

    @property
    def reserved(self) -> dict[bytes, bytes]:
        """Our own fields (``reaper.…``), as they stand in the entry: a dead letter's reason, for example."""
        return {name: value for name, value in pair_up(self._flat) if name.startswith(RESERVED_PREFIX)}

    @property
    def own_visibility_ms(self) -> int:
        """How long a visibility timeout the producer asked for (``reaper.visibility_ms``); 0 = none of its own."""
        if FIELD_VISIBILITY_MS not in self._flat:
            return 0  # nearly always, and found out fast
        return whole_number(self.reserved.get(FIELD_VISIBILITY_MS), 0)

    @property
    def timeout(self) -> timedelta | None:
        """How long this delivery may run, or None for as long as it takes: the job's own timeout, else the worker's."""
        return None if self.timeout_s == inf else timedelta(seconds=self.timeout_s)

    @property
    def fencing_token(self) -> int:
        """A number that grows with every delivery of the job, in every mode, across recoveries, retries and redrives.

        Hand it to the systems the handler writes to; they refuse whoever comes with a smaller one than they have
        seen for this job.
        """
        copies, times = min(self.copies, _TOKEN_MASK), min(self.times_delivered, _TOKEN_MASK)
        return self.generation << 2 * _TOKEN_BITS | copies << _TOKEN_BITS | times

    async def extend(self) -> bool:
        """Prove now that this delivery is alive; returns False where it is not ours any more.

        The worker extends what it holds by itself. Ask before a step that must not be taken twice. The `timeout` is
        not extended. From a handler that is a plain function: ``anyio.from_thread.run(job.extend)``. Raises what
        redis-py raises where Redis is out of reach: then nobody knows.
        """
        if self.source.extend is None:
            raise RuntimeError("only a job that a worker runs can be extended")
        return await self.source.extend(self)

    # ---- for the worker

    def begin(self, now: float) -> None:
        """Note that the handler begins."""
        self.started = now
        self.stage = RUNNING

    def interrupt(self, why: Interruption) -> None:
        """Take the delivery from its handler, which is cancelled, once; a thread goes on by itself."""
        if self.interruption is None and self.stage is RUNNING and self.runner is not None:
            self.runner.cancel()
        self.interruption = why

    def is_overdue(self, now: float) -> bool:
        """Tell whether the handler runs for longer than it may."""
        return self.stage is RUNNING and now >= self.started + self.timeout_s

    @property
    def payload_bytes(self) -> int:
        """Size of all fields, in bytes."""
        return sum(map(len, self._flat))

    def __repr__(self) -> str:
        return f"<Job {self.id} entry={self.entry_id} of {self.source.key} delivery={self.deliveries}>"
