"""The argument of a handler, which is one delivery of a job."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import Any, NoReturn, Protocol, TypeVar, overload

from workers.protocol.errors import InvalidFieldError
from workers.protocol.messages import (
    FIELD_QUARANTINED,
    FIELD_TRACEPARENT,
    RESERVED_PREFIX,
    Pairs,
    entry_ms,
    first_of,
    pair_up,
    read_metadata,
    text,
)

TRACEPARENT_BYTES = 55
_EVEN_DIGITS = b"02468ace"

_TOKEN_BITS = 20
_TOKEN_MASK = (1 << _TOKEN_BITS) - 1


DefaultT = TypeVar("DefaultT")
_NO_DEFAULT: Any = object()
"""Stands for a missing argument, because None is a valid default."""


class Origin(Protocol):
    """The stream of a job, and its worker."""

    key: str
    """``orders``, or ``{orders}:retry:billing``."""
    stream: str
    """``orders`` in both cases."""


@dataclass(init=False, repr=False, eq=False, slots=True)
class Job:
    """One job in one delivery. Fields are bytes, as the producer wrote them.

    Fields are decoded when you read them, because many handlers use only one. A job does not change while its handler
    runs.
    """

    deliveries: int
    """Number of this delivery, from 1. Deliveries of earlier entries of the job count, too."""
    generation: int
    """How often the job was redriven from the dead letters."""
    waits: int
    """Retries in a row before this delivery that did not count."""
    hand_backs: int
    """How often in a row, before this delivery, the job was handed back although its handler had begun."""
    delivered_ms: int
    """When this delivery reached the worker, in ms since the epoch, on the server's clock."""
    times_delivered: int
    """How often this entry was delivered, as the pending entries list counts."""
    copies: int
    """How often recoveries, retries and redrives copied the job to a new entry."""
    timeout_s: float
    """`timeout` in seconds. Infinite without a limit."""
    is_quarantined: bool
    """The entry is marked as quarantined. The job runs alone, with any limit of deliveries."""
    is_as_produced: bool
    """The entry has no reserved field. Its ID is the ID of the job, and the time at which it was enqueued."""
    raw_id: bytes
    """`id` as bytes."""
    raw_entry_id: bytes
    """`entry_id` as bytes."""
    _origin: Origin
    _flat: Sequence[bytes]
    _first_ms: int | None
    """From the entry's fields. None if only the entry ID contains it."""
    _pairs: Pairs | None
    _fields: dict[bytes, bytes] | None

    def _read_reserved(self, max_deliveries: int) -> None:
        names = self._flat[::2]
        metadata = read_metadata(self.raw_entry_id, zip(names, self._flat[1::2], strict=False))
        self.is_as_produced = False
        self.is_quarantined = FIELD_QUARANTINED in names
        self.raw_id = metadata.job_id
        # Cut as in prelude, so that every entry is executed at least once, with any number from a producer.
        self.deliveries = min(metadata.deliveries, max_deliveries - 1) + self.times_delivered
        self.generation = metadata.generation
        self.waits = metadata.waits
        self.hand_backs = metadata.hand_backs
        self._first_ms = metadata.first_ms
        self.copies = metadata.copies
        if metadata.timeout_ms:
            self.timeout_s = metadata.timeout_ms / 1000

    @property
    def id(self) -> str:
        """The ID of the job. It is the same in every delivery."""
        return text(self.raw_id)

    @property
    def entry_id(self) -> str:
        """ID of the stream entry that carries this delivery."""
        return text(self.raw_entry_id)

    @property
    def first_ms(self) -> int:
        """When the job was first enqueued, in ms since the epoch, by the server's clock."""
        return entry_ms(self.raw_entry_id) if self._first_ms is None else self._first_ms

    @property
    def stream(self) -> str:
        """Name of the stream the job was enqueued in."""
        return self._origin.stream

    @property
    def pairs(self) -> Pairs:
        """The user's fields in their order, with duplicates, and without ``reaper.…``."""
        if self._pairs is None:
            self._pairs = [pair for pair in pair_up(self._flat) if not pair[0].startswith(RESERVED_PREFIX)]
        return self._pairs

    @property
    def fields(self) -> dict[bytes, bytes]:
        """The user's fields by name. A repeated name has its last value."""
        if self._fields is None:
            self._fields = dict(self.pairs)
        return self._fields

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, default: DefaultT) -> str | DefaultT: ...
    def text(self, name: str, default: object = _NO_DEFAULT) -> object:
        """Return the field ``name`` as text, or ``default`` if it is missing. A repeated name has its last value.

        Raises InvalidFieldError if the field is missing and there is no default, or if it is not UTF-8.
        """
        value = self._value(name, default)
        return self._decoded(name, value) if isinstance(value, bytes) else default

    def json(self, name: str | None = None, default: object = _NO_DEFAULT) -> Any:
        """Return the parsed JSON of the field ``name``, or ``default`` if it is missing.

        A repeated name has its last value. Without a name, the job must have exactly one field. Raises
        InvalidFieldError if the field is missing and there is no default, or if it is not JSON.
        """
        if name is None:
            name = self._only_field()
        value = self._value(name, default)
        if not isinstance(value, bytes):
            return default
        try:
            return json.loads(self._decoded(name, value))
        except (ValueError, RecursionError) as error:
            raise InvalidFieldError(f"field {name!r} of job {self.id} is not JSON: {error}.") from error

    def _value(self, name: str, default: object) -> bytes | None:
        """Return the value of a user's field, or None if it is missing and has a ``default``."""
        encoded = name.encode("utf-8", "surrogateescape")
        value = None if encoded.startswith(RESERVED_PREFIX) else self.value_of(encoded)
        if value is None and default is _NO_DEFAULT:
            raise InvalidFieldError(
                f"field {name!r} of job {self.id} is missing. The job has the fields [{first_of(self.fields)}]."
            )
        return value

    def _decoded(self, name: str, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidFieldError(f"field {name!r} of job {self.id} is not UTF-8 text: {error}.") from error

    def _only_field(self) -> str:
        names = list(self.fields)
        if len(names) != 1:
            raise InvalidFieldError(
                f"job {self.id} has the fields [{first_of(self.fields)}]. Name the field to read as JSON."
            )
        return names[0].decode("utf-8", "surrogateescape")

    def value_of(self, name: bytes) -> bytes | None:
        """Return the last value of one field, or None. It is faster than `fields` for one of many."""
        names = self._flat[-2::-2]
        return self._flat[-1 - 2 * names.index(name)] if name in names else None

    @property
    def reserved(self) -> dict[bytes, bytes]:
        """The fields of stream-reaper (``reaper.…``), for example the reason of a dead letter."""
        return {name: value for name, value in pair_up(self._flat) if name.startswith(RESERVED_PREFIX)}

    @property
    def timeout(self) -> timedelta | None:
        """The time limit of this delivery, which is the job's own timeout, or else the worker's. None is no limit."""
        return None if self.timeout_s == inf else timedelta(seconds=self.timeout_s)

    @property
    def fencing_token(self) -> int:
        """A number that grows with every delivery of the job, also across retries, recoveries and redrives.

        Pass it to the systems that the handler writes to. They reject a write with a smaller token than the last one of
        this job.
        """
        copies, times = min(self.copies, _TOKEN_MASK), min(self.times_delivered, _TOKEN_MASK)
        return self.generation << 2 * _TOKEN_BITS | copies << _TOKEN_BITS | times

    async def extend(self) -> bool:
        """Send a heartbeat for this delivery now, and return False if it was recovered.

        The worker sends heartbeats by itself. Call this before a step that must not happen twice. It does not extend
        the `timeout`. In a plain handler call ``anyio.from_thread.run(job.extend)``. Raises redis.RedisError if Redis
        does not answer. The result is then unknown.
        """
        raise RuntimeError("cannot extend the job: no worker runs it.")

    def __reduce__(self) -> NoReturn:
        """Reject copies, above all into another process, because only this worker knows the job."""
        raise TypeError(
            f"job {self.id} cannot be copied or pickled: it belongs to its worker. Pass on its ID and the fields "
            "that you need."
        )

    # ---- for the worker

    @property
    def payload_bytes(self) -> int:
        """Size of all fields, in bytes."""
        return sum(map(len, self._flat))

    @property
    def is_unsampled(self) -> bool:
        """Return quickly whether the job's producer does not sample its trace. Called for every job that is read."""
        flat = self._flat
        try:
            place = flat.index(FIELD_TRACEPARENT)
        except ValueError:
            return False
        if place % 2:
            return False  # it is some field's value
        traceparent = flat[place + 1]
        return len(traceparent) == TRACEPARENT_BYTES and traceparent[-1] in _EVEN_DIGITS

    def __repr__(self) -> str:
        return f"<Job {self.id} entry={self.entry_id} of {self._origin.key} delivery={self.deliveries}>"
