"""The parts of producers without I/O. They check jobs, pack them into calls, and limit retries.

After a lost reply, the producer sends the same call again. The script recognizes it, so no job is added twice.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Generic, Self, TypeVar

from redis.exceptions import DataError, ResponseError

from workers.new_jobs import DEFAULT_MAX_BYTES, Fields, NewJob, encode_job
from workers.protocol.calls import CALL_BYTES, in_calls
from workers.protocol.calls.enqueueing import Enqueueing, PackedJob
from workers.protocol.errors import ConfigurationError, StreamReaperError, UnreachableError
from workers.protocol.keys import stream_keys
from workers.protocol.meaning import is_contact_error
from workers.protocol.messages import counted, text
from workers.runtime.clock import monotonic
from workers.runtime.pauses import pause_s
from workers.runtime.settings import Duration, ProgramSettings, duration_in_ms, load_settings, to_ms

DEFAULT_DEDUP_WINDOW = timedelta(minutes=10)
RETRY_FOR_S = 15.0
"""How long a call whose reply was lost is sent again."""
CALL_REMEMBERED = timedelta(seconds=60)
"""How long the server remembers a call. This is longer than `RETRY_FOR_S`."""
CALL_JOBS = 200
"""Jobs in one call, however small they are."""


class JobId(str):
    """The ID of an enqueued job, a ``str`` with the attribute ``is_new``."""

    __slots__ = ("is_new",)

    is_new: bool
    """False if a job with this ID was enqueued within the dedup window, so that this one was not enqueued."""

    def __new__(cls, text: str, *, is_new: bool = True) -> Self:  # noqa: D102
        job_id = super().__new__(cls, text)
        job_id.is_new = is_new
        return job_id


ClientT = TypeVar("ClientT")


class BaseProducer(Generic[ClientT]):
    """The parts that `Producer` and `SyncProducer` share."""

    def __init__(
        self,
        stream: str,
        redis: str | None = None,
        *,
        dedup_window: Duration = DEFAULT_DEDUP_WINDOW,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self._address = load_settings(ProgramSettings).redis_url if redis is None else redis
        self._keys = stream_keys(stream)
        try:
            self._window_ms = duration_in_ms("dedup_window", dedup_window, CALL_REMEMBERED.total_seconds())
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        self._max_bytes = max_bytes
        self._client = self._connect()

    def _connect(self) -> ClientT:
        """Return a client, which connects at its first call."""
        raise NotImplementedError

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._keys.stream

    def _pack(self, jobs: Iterable[NewJob | Fields]) -> list[PackedJob]:
        """Return ``jobs`` as they are sent. Raises InvalidJobError."""
        stream, most = self.stream, self._max_bytes
        return [encode_job(job if isinstance(job, NewJob) else NewJob(job), stream, most) for job in jobs]

    def _calls(self, jobs: Iterable[PackedJob]) -> "Iterator[EnqueueCall]":
        """Yield the calls that enqueue ``jobs``, each when it is about to be sent for the first time."""
        for some in in_calls(jobs, lambda job: job.size, most=CALL_JOBS, most_bytes=CALL_BYTES):
            call = uuid.uuid4().hex
            yield EnqueueCall(Enqueueing(self._keys, some, call, to_ms(CALL_REMEMBERED), self._window_ms))


class EnqueueCall:
    """Jobs that are enqueued together, all or none. The call is repeated until Redis answers, or for `RETRY_FOR_S`."""

    def __init__(self, request: Enqueueing) -> None:
        self._request = request
        self._give_up_at = monotonic() + RETRY_FOR_S
        self._failures = 0
        self._error: Exception | None = None

    @property
    def request(self) -> Enqueueing:
        """The same message each time. Raises UnreachableError after `RETRY_FOR_S`."""
        if monotonic() > self._give_up_at:
            raise self._unknown(self._error or TimeoutError(f"no answer for {RETRY_FOR_S:.0f} s"))
        return self._request

    def ids(self, added: Sequence[int]) -> list[JobId]:
        """Return the IDs of the jobs. ``added`` is the reply."""
        jobs = self._request.jobs
        return [JobId(text(job.job_id), is_new=one == 1) for job, one in zip(jobs, added, strict=True)]

    def pause_after(self, error: Exception) -> float:
        """Return the pause before the call is sent again. Raises ``error`` or UnreachableError if it is not."""
        if not is_contact_error(error):
            if isinstance(error, (StreamReaperError, ResponseError, DataError)):  # a DataError comes before sending
                raise error
            raise self._unknown(error)
        self._error = error
        self._failures += 1
        return pause_s(self._failures)

    def _unknown(self, cause: Exception) -> UnreachableError:
        jobs = self._request.jobs
        error = UnreachableError(
            f"cannot confirm {counted(len(jobs), 'job')} of {self._request.keys.stream!r}, of which the first is "
            f"{text(jobs[0].job_id)}: {str(cause) or type(cause).__name__}. If you chose their job_ids, enqueue them "
            "again, because no job is added twice."
        )
        error.__cause__ = cause
        return error
