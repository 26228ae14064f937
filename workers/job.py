"""What a handler gets: one job, in one of its deliveries."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.protocol.messages import (
    RESERVED_PREFIX,
    Metadata,
    Pairs,
    pair_up,
    read_metadata,
    text,
)


@dataclass(slots=True, eq=False)
class Source:
    """A stream that deliveries are read from, and what this process holds of it."""

    key: str
    """``orders``, or ``{orders}:retry:billing``."""
    stream: str
    """``orders`` in both cases."""
    deliveries: dict[bytes, "Job"] = field(default_factory=dict)
    """By entry ID: everything that is queued, running or waits to be settled here."""
    kept: set[bytes] = field(default_factory=set)
    """Entry IDs that could not be settled and stay pending: this process does not run them again."""

    @property
    def is_retry(self) -> bool:
        """Tell whether it is the group's retry stream."""
        return self.key != self.stream

    def hold(self, job: "Job") -> None:
        """Note that ``job`` is in our hands from now on."""
        self.deliveries[job.raw_entry_id] = job

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
        "delivered_ms",
        "deliveries",
        "first_ms",
        "generation",
        "raw_entry_id",
        "raw_id",
        "source",
        "times_delivered",
    )

    deliveries: int
    """Number of this delivery, from 1; deliveries of earlier entries of the job count too."""
    generation: int
    """How often the job was redriven from the dead letters."""
    first_ms: int
    """When the job was first enqueued, in ms since the epoch, on the server's clock."""
    delivered_ms: int
    """When this delivery reached the worker, in ms since the epoch, on the server's clock."""

    def __init__(
        self,
        source: Source,
        entry_id: bytes,
        flat: Sequence[bytes],
        times_delivered: int,
        max_deliveries: int,
        delivered_ms: int,
    ) -> None:
        self.source = source
        self.raw_entry_id = self.raw_id = entry_id
        self.times_delivered = self.deliveries = times_delivered
        self.generation = 0
        self.first_ms = int(entry_id.partition(b"-")[0])  # `entry_ms`, at half its cost
        self.delivered_ms = delivered_ms
        self._flat = flat
        self._pairs: Pairs | None = None
        self._fields: dict[bytes, bytes] | None = None
        for name in flat[::2]:
            if name.startswith(RESERVED_PREFIX):
                self._take(read_metadata(entry_id, pair_up(flat)), max_deliveries)
                break

    def _take(self, metadata: Metadata, max_deliveries: int) -> None:
        self.raw_id = metadata.job_id
        # Cut as in prelude.lua: whatever a producer wrote there, every entry is executed at least once.
        self.deliveries = min(metadata.deliveries, max_deliveries - 1) + self.times_delivered
        self.generation = metadata.generation
        self.first_ms = metadata.first_ms

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

    @property
    def reserved(self) -> dict[bytes, bytes]:
        """Our own fields (``reaper.…``), as they stand in the entry: a dead letter's reason, for example."""
        return {name: value for name, value in pair_up(self._flat) if name.startswith(RESERVED_PREFIX)}

    @property
    def payload_bytes(self) -> int:
        """Size of all fields, in bytes."""
        return sum(map(len, self._flat))

    def __repr__(self) -> str:
        return f"<Job {self.id} entry={self.entry_id} of {self.source.key} delivery={self.deliveries}>"
