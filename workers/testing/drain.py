"""Runs a worker on a server of the tests until no job is ready, pending or scheduled.

It skips time instead of waiting. If no other job is left, the next scheduled job becomes due. Failed jobs are ready
again at once. The worker recovers stalled jobs itself.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple, Protocol

import anyio
from anyio.abc import TaskStatus
from redis.asyncio import Redis
from redis.exceptions import RedisError

from workers.loop.held import RUNNING, Held
from workers.loop.reporting import Counts
from workers.new_jobs import Fields, NewJob
from workers.producer import Producer
from workers.protocol.connection import commands_client
from workers.protocol.keys import GroupKeys
from workers.protocol.log_fields import fields
from workers.protocol.messages import (
    DEAD_PREFIX,
    FIELD_DELIVERIES,
    FIELD_JOB,
    RESERVED_PREFIX,
    RecoveryMode,
    entry_order,
    pair_up,
    text,
    whole_number,
)
from workers.runtime.event_loop import require_asyncio
from workers.testing.handlers import in_own_loop
from workers.testing.settings import settings_of
from workers.worker import Worker

PATIENCE_S = 10.0
_POLL_S = 0.01
_QUARANTINE_SCORE = 2**52
"""From here on, members of the schedule are no jobs that are due some day, but quarantined jobs."""
_SHOWN = 5


class NotDrainedError(AssertionError):
    """The worker did not finish its jobs. The message lists the remaining ones."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter of the run."""

    job_id: str
    reason: str
    """``max_deliveries``, ``rejected``, ``timeout``, or what the handler gave."""
    error: str
    """The last error: ``Type: message``."""
    fields: dict[bytes, bytes]
    deliveries: int
    """How often it was delivered, as far as that counts."""
    traceback: str


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of a drained worker."""

    counts: Counts
    dead_letters: list[DeadLetter]
    """All of the group, oldest first."""


class DrainWorker(Protocol):
    """Type of the fixture ``run_until_drained``, which is the function of that name with the server."""

    def __call__(
        self, worker: Worker, jobs: Iterable[NewJob | Fields] = (), *, patience: float = ..., **settings: Any
    ) -> Drained:
        """Enqueue ``jobs`` and run ``worker`` until its group is drained."""


class DrainWorkerAsync(Protocol):
    """Type of the fixture ``run_until_drained_async``."""

    async def __call__(
        self, worker: Worker, jobs: Iterable[NewJob | Fields] = (), *, patience: float = ..., **settings: Any
    ) -> Drained:
        """Enqueue ``jobs`` and run ``worker`` until its group is drained."""


def run_until_drained(
    worker: Worker,
    jobs: Iterable[NewJob | Fields] = (),
    *,
    redis_url: str,
    patience: float = PATIENCE_S,
    **settings: Any,
) -> Drained:
    """Enqueue ``jobs`` and run ``worker`` until its group is drained. See `run_until_drained_async`."""
    return in_own_loop(
        lambda: run_until_drained_async(worker, jobs, redis_url=redis_url, patience=patience, **settings),
        run_until_drained_async.__name__,
    )


async def run_until_drained_async(
    worker: Worker,
    jobs: Iterable[NewJob | Fields] = (),
    *,
    redis_url: str,
    patience: float = PATIENCE_S,
    **settings: Any,
) -> Drained:
    """Enqueue ``jobs``, run ``worker`` until its group is drained, and return the result.

    Args:
        worker: The worker.
        jobs: Fields, or `NewJob` objects.
        redis_url: The server of the tests.
        patience: The longest time in seconds without a finished job.
        **settings: Settings that override the program's. The environment is not read.

    Raises:
        NotDrainedError: No job ended for ``patience`` seconds.
        ConfigurationError: The settings are invalid.
    """
    require_asyncio(run_until_drained_async.__name__)
    ours = {"recovery": RecoveryMode.EMBEDDED, "backoff_base": 0}
    chosen = settings_of(worker, **ours | settings, redis_url=redis_url)
    async with commands_client(redis_url) as client:
        async with Producer(chosen.stream, redis_url) as producer:
            await producer.enqueue_many(jobs)
        watch = _Watch(client, chosen.keys, worker)
        with worker.going_by(chosen), _plain_errors():
            async with anyio.create_task_group() as tasks:
                await tasks.start(_run, worker)
                await watch.until_drained(patience)
                worker.stop()
        return Drained(worker.counts, await _dead_letters(client, chosen.keys))


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise the single error of a task group as it is, because tests expect it and not a group of one."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        raise group.exceptions[0] from group.exceptions[0].__cause__


async def _run(worker: Worker, *, task_status: TaskStatus[None]) -> None:
    await worker.run(task_status=task_status)


async def _dead_letters(client: Redis, keys: GroupKeys) -> list[DeadLetter]:
    rows: Any = await client.xrange(keys.dead)
    return [_dead_letter(flat) for _, flat in rows]


def _dead_letter(flat: list[bytes]) -> DeadLetter:
    pairs = pair_up(flat)
    said = dict(pairs)
    return DeadLetter(
        job_id=text(said[FIELD_JOB]),
        reason=text(said.get(DEAD_PREFIX + b"reason", b"")),
        error=text(said.get(DEAD_PREFIX + b"error", b"")),
        fields={name: value for name, value in pairs if not name.startswith(RESERVED_PREFIX)},
        deliveries=whole_number(said.get(FIELD_DELIVERIES), 0),
        traceback=text(said.get(DEAD_PREFIX + b"traceback", b"")),
    )


class _Next(NamedTuple):
    """The first member of a schedule."""

    due_ms: float
    schedule: str
    member: bytes


@dataclass(slots=True)
class _Left:
    """The remaining work of a group at one moment."""

    ready: list[str] = field(default_factory=list)
    """Streams with jobs that wait to be read."""
    pending: int = 0
    scheduled: int = 0
    """Jobs that wait until they are due, and quarantined jobs."""
    quarantined: int = 0
    """Released, and not settled."""
    next: _Next | None = None
    """What is due next, where that is not due yet."""

    def __bool__(self) -> bool:
        return bool(self.ready or self.pending or self.scheduled or self.quarantined)

    def __str__(self) -> str:
        waiting = f"jobs wait to be read in {' and '.join(self.ready)}" if self.ready else "no job waits to be read"
        return f"{waiting}, {self.pending} pending, {self.scheduled} scheduled, {self.quarantined} quarantined jobs"


class _Watch:
    """Looks at a group while its worker runs, and makes due what the worker would wait for."""

    def __init__(self, client: Redis, keys: GroupKeys, worker: Worker) -> None:
        self._client = client
        self._keys = keys
        self._worker = worker

    async def until_drained(self, patience_s: float) -> None:
        """Wait until no job is left. Raises NotDrainedError where that does not come."""
        ended, since = -1, monotonic()
        while left := await self._look():
            counts = self._worker.counts
            if ended != (ended := counts.acked + counts.dead_lettered):
                since = monotonic()
            elif monotonic() - since > patience_s:
                raise self._not_drained(f"no job came to its end for {patience_s:g} s", left)
            if self._worker.process is None or self._worker.process.finished:
                raise self._not_drained("the worker was stopped", left)
            if left.next and not left.ready and not left.pending:
                await self._make_due(left.next)
            await anyio.sleep(_POLL_S)

    async def _look(self) -> _Left:
        """Read everything at one moment, because jobs move between places."""
        keys, schedules = self._keys, (self._keys.schedule, self._keys.stream_schedule)
        sources = (keys.stream, keys.retry)
        call = self._client.pipeline(transaction=True)
        for source in sources:
            call.xinfo_groups(source)
            call.xinfo_stream(source)
        for schedule in schedules:
            call.zcard(schedule)
            call.zrange(schedule, 0, 0, withscores=True)
        call.hlen(keys.quarantine)
        call.time()
        replies: list[Any] = await call.execute(raise_on_error=False)
        left = _Left()
        for source in sources:
            groups, stream, *replies = replies
            if not isinstance(groups, RedisError):  # else it is not there
                self._add_source(left, source, groups, stream)
        upcoming = []
        for schedule in schedules:
            number, first, *replies = replies
            left.scheduled += number
            upcoming += [_Next(score, schedule, member) for member, score in first if score < _QUARANTINE_SCORE]
        left.quarantined, (seconds, microseconds) = replies
        left.next = min(upcoming, default=None)
        if left.next and left.next.due_ms <= seconds * 1000 + microseconds // 1000:
            left.next = None
        return left

    def _add_source(self, left: _Left, source: str, groups: Any, stream: Any) -> None:
        last = stream["last-entry"]
        for group in groups:
            if text(group["name"]) == self._keys.group:
                left.pending += group["pending"]
                if last and entry_order(last[0]) > entry_order(group["last-delivered-id"]):
                    left.ready.append(source)

    async def _make_due(self, upcoming: _Next) -> None:
        """Skip the time until then, and wake the worker as an earlier schedule does."""
        await self._client.zadd(upcoming.schedule, {upcoming.member: 0}, xx=True)
        await self._client.publish(upcoming.schedule, "0")

    def _not_drained(self, problem: str, left: _Left) -> NotDrainedError:
        """Describe the problem in one line, with one more for each of the first jobs in hand."""
        now = monotonic()
        in_hand = self._worker.process.in_hand() if self._worker.process else []
        lines = [
            f"  {held.stage.name.lower()}: job {held.id}, delivery {held.deliveries}{_age(held, now)}"
            for held in in_hand
        ]
        more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        counts = fields(**self._worker.counts.facts())
        first = f"{self._keys.pair} is not drained: {problem}. Left: {left}. Counts of the worker: {counts}"
        return NotDrainedError("\n".join([first, *lines[:_SHOWN], *more]))


def _age(held: Held, now: float) -> str:
    return f", runs for {now - held.started:.1f} s" if held.stage is RUNNING else ""
