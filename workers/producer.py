"""Enqueues jobs: each once, now or later. A bare ``XADD`` from any language does as well; this adds what it cannot.

::

    async with Producer("redis://127.0.0.1:6379/0", "orders") as orders:
        job_id = await orders.enqueue({"order": 17})
        await orders.enqueue({"order": 17}, job_id="reminder-17", delay=3600)

A lost reply makes no second job: what was sent is sent again under the same ID, and the script knows it.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, Self

import anyio
from redis.asyncio import Redis

from workers.protocol.calls import CALL_BYTES, in_calls
from workers.protocol.calls.enqueueing import PackedJob, enqueue
from workers.protocol.connection import commands_client
from workers.protocol.errors import ConfigurationError, InvalidJobError, UnreachableError
from workers.protocol.keys import stream_keys
from workers.protocol.meaning import is_contact_error
from workers.protocol.messages import FIELD_TIMEOUT_MS, FIELD_VISIBILITY_MS, MAX_JOB_ID_BYTES, RESERVED_PREFIX, text
from workers.runtime.clock import monotonic
from workers.runtime.event_loop import require_asyncio
from workers.runtime.pauses import pause_s
from workers.runtime.settings import delay_in_ms, to_ms
from workers.telemetry.sending import sending

Word = str | bytes | int | float
Fields = Mapping[str, Any] | Mapping[bytes, Any] | Iterable[tuple[Word, Word]]
"""Values are words. If they were typed as such, ``{"order": 17, "customer": "Ada"}`` would be refused: where a union is
expected, mypy takes it for a mapping to objects."""
Duration = float | timedelta

DEFAULT_DEDUP_WINDOW = timedelta(minutes=10)
DEFAULT_MAX_BYTES = 1_048_576
MAX_FIELDS = 3_400
"""Fields of a job: more could not be copied when it is redelivered (``MAX_ARGUMENTS`` in ``prelude.lua``)."""

RETRY_FOR_S = 15.0
"""How long a call whose reply was lost is sent again."""
CALL_REMEMBERED = timedelta(seconds=60)
"""How long the server remembers a call: longer than it is sent again."""
CALL_JOBS = 200
"""Jobs in one call, however small they are."""


class HasRedis(Protocol):
    """Settings that say where Redis is: `WorkerSettings`, for example."""

    @property
    def redis_url(self) -> str:
        """Address of Redis."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job for `Producer.enqueue_many`; fields as the arguments of `Producer.enqueue`."""

    fields: Fields
    job_id: str | bytes | None = None
    delay: Duration | None = None
    visibility_timeout: Duration | None = None
    timeout: Duration | None = None


class Producer:
    """Enqueues jobs of one stream. Give it Redis's address, an async client (it stays yours), or settings.

    ``dedup_window``: how long a ``job_id`` is remembered after its job became ready (at least a minute). ``max_bytes``:
    the largest job, all fields together.

    Raises ConfigurationError for a stream name or a window that cannot work.
    """

    def __init__(
        self,
        redis: "str | Redis | HasRedis",
        stream: str,
        *,
        dedup_window: Duration = DEFAULT_DEDUP_WINDOW,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self._keys = stream_keys(stream)
        self._window_ms = delay_in_ms(dedup_window)
        if self._window_ms < to_ms(CALL_REMEMBERED):
            raise ConfigurationError(
                f"dedup_window {dedup_window!r} is too short: a call is sent again for some time after a lost reply, "
                f"so give at least {CALL_REMEMBERED.total_seconds():.0f} seconds."
            )
        self._max_bytes = max_bytes
        self._owns_client = not isinstance(redis, Redis)
        if isinstance(redis, Redis):
            self._client = redis
        else:
            self._client = commands_client(redis if isinstance(redis, str) else redis.redis_url)

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._keys.stream

    async def aclose(self) -> None:
        """Close the connections, unless the client was given to us; also where we are being cancelled."""
        if self._owns_client:
            with anyio.CancelScope(shield=True):
                await self._client.aclose()

    async def __aenter__(self) -> Self:
        require_asyncio("a producer")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def enqueue(
        self,
        fields: Fields,
        *,
        job_id: str | bytes | None = None,
        delay: Duration | None = None,
        visibility_timeout: Duration | None = None,
        timeout: Duration | None = None,
    ) -> str:
        """Enqueue one job; return its ID. Durations are seconds or timedeltas.

        ``job_id``: 1 to 256 bytes; given twice within the dedup window it is one job, the first. ``delay``: the job is
        ready only then. ``visibility_timeout`` lengthens the group's for this job; ``timeout``: how long it may run.

        Raises InvalidJobError before anything is sent, UnreachableError where nobody knows whether it was enqueued,
        and what redis-py raises where Redis refused it (no memory left, for example): then it was not.
        """
        return (await self.enqueue_many([NewJob(fields, job_id, delay, visibility_timeout, timeout)]))[0]

    async def enqueue_many(self, jobs: Iterable[NewJob | Fields]) -> list[str]:
        """Enqueue jobs in their order; return their IDs. Each is checked before the first is sent.

        Large numbers go out in several calls, each of which is all or nothing. Raises as `enqueue`; what earlier
        calls have enqueued stays.
        """
        require_asyncio("a producer")
        stream, max_bytes = self._keys.stream, self._max_bytes
        encoded = [encode_job(job if isinstance(job, NewJob) else NewJob(job), stream, max_bytes) for job in jobs]
        with sending(stream, encoded):
            for call in in_calls(encoded, lambda job: job.size, most=CALL_JOBS, most_bytes=CALL_BYTES):
                await self._send(call)
        return [text(job.job_id) for job in encoded]

    async def _send(self, jobs: Sequence[PackedJob]) -> None:
        own = "" if all(job.chosen for job in jobs) else uuid.uuid4().hex
        give_up_at, failures = monotonic() + RETRY_FOR_S, 0
        while True:
            try:
                call_ms, job_ms = to_ms(CALL_REMEMBERED), self._window_ms
                await enqueue(self._client, self._keys, jobs, call=own, call_ms=call_ms, job_ms=job_ms)
            except Exception as error:
                if not is_contact_error(error):
                    raise
                if monotonic() > give_up_at:
                    raise self._unknown(jobs, error) from error
                failures += 1
                await self._client.connection_pool.disconnect(inuse_connections=False)
                await anyio.sleep(pause_s(failures))
            else:
                return

    def _unknown(self, jobs: Sequence[PackedJob], error: Exception) -> UnreachableError:
        return UnreachableError(
            f"no contact with Redis: nobody knows whether {len(jobs)} jobs of {self.stream} were enqueued (the first "
            f"is {text(jobs[0].job_id)}). Enqueue them again with job_ids of your own, and none is there twice: {error}"
        )


def encode_job(job: NewJob, stream: str, max_bytes: int = DEFAULT_MAX_BYTES) -> PackedJob:
    """Return ``job`` as it is sent to ``stream``. Raises InvalidJobError."""
    words = _encode_fields(job.fields)
    for name, duration in ((FIELD_VISIBILITY_MS, job.visibility_timeout), (FIELD_TIMEOUT_MS, job.timeout)):
        if duration is not None:
            words += (name, b"%d" % _duration_ms(name, duration))
    chosen = job.job_id is not None
    job_id = _encode_job_id(job.job_id) if job.job_id is not None else uuid.uuid4().hex.encode()
    size = sum(map(len, words))
    if size > max_bytes:
        raise InvalidJobError(
            f"the job has {size} bytes and {stream} takes {max_bytes}: keep large data elsewhere and "
            "enqueue where it is, or raise max_bytes."
        )
    return PackedJob(job_id, chosen, _duration_ms(b"delay", job.delay or 0, least=0), words, size)


def _encode_fields(fields: Fields) -> list[bytes]:
    pairs = fields.items() if isinstance(fields, Mapping) else fields
    words: list[bytes] = []
    for name, value in pairs:
        encoded = _encode_word(name)
        if encoded.startswith(RESERVED_PREFIX):
            raise InvalidJobError(
                f"field {name!r} cannot be enqueued: names that begin with 'reaper.' are reserved. Rename it, or use "
                "the arguments job_id, delay, visibility_timeout and timeout."
            )
        words += (encoded, _encode_word(value))
    if len(words) > 2 * MAX_FIELDS:
        raise InvalidJobError(
            f"the job has {len(words) // 2} fields, and {MAX_FIELDS} are the most: pack some together."
        )
    return words


def _encode_word(word: Word) -> bytes:
    if isinstance(word, bytes):
        return word
    if isinstance(word, str):
        return word.encode("utf-8", "surrogateescape")
    if type(word) in (int, float):  # a bool is an int, and nobody knows how it should be written
        return str(word).encode()
    raise InvalidJobError(f"a field cannot hold {word!r:.100}: give str, bytes, int or float.")


def _encode_job_id(job_id: str | bytes) -> bytes:
    encoded = _encode_word(job_id)
    if not 0 < len(encoded) <= MAX_JOB_ID_BYTES:
        raise InvalidJobError(f"job_id has {len(encoded)} bytes: give 1 to {MAX_JOB_ID_BYTES}.")
    return encoded


def _duration_ms(name: bytes, duration: Duration, *, least: int = 1) -> int:
    try:
        milliseconds = delay_in_ms(duration)
    except ValueError as error:
        raise InvalidJobError(f"{text(name)}: {error}.") from error
    if milliseconds < least:
        raise InvalidJobError(f"{text(name)} cannot be {duration!r}: give a millisecond or more.")
    return milliseconds
