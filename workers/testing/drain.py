"""Runs a worker on a server of the tests until no job is ready, pending or scheduled.

It skips time instead of waiting. If no other job is left, the next scheduled job becomes due. Failed jobs are ready
again at once. The worker recovers stalled jobs itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any
from unittest.mock import patch

import anyio
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from workers.loop.in_flight import RUNNING, Delivery
from workers.loop.reporting import Counts
from workers.new_jobs import Fields, NewJob
from workers.producer import Producer
from workers.protocol.calls.group_moves import QUARANTINE_SCORE, GroupLoad, look_at_group
from workers.protocol.connection import commands_client
from workers.protocol.keys import GroupKeys
from workers.protocol.log_fields import fields
from workers.protocol.messages import (
    DEAD_PREFIX,
    FIELD_DELIVERIES,
    FIELD_JOB,
    RESERVED_PREFIX,
    RecoveryMode,
    pair_up,
    text,
    whole_number,
)
from workers.testing.handlers import settings_of
from workers.worker import Worker

PATIENCE_S = 10.0
_POLL_S = 0.01


class NotDrainedError(AssertionError):
    """The worker did not finish its jobs. The message lists the remaining ones."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter of the run."""

    job_id: str
    reason: str
    """``max_deliveries``, ``rejected``, ``timeout``, or the reason that the handler gave."""
    error: str
    """The last error, as ``Type: message``."""
    fields: dict[bytes, bytes]
    deliveries: int
    """How many of its deliveries count."""
    traceback: str


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of a drained worker."""

    counts: Counts
    dead_letters: list[DeadLetter]
    """All of the group, oldest first."""


DrainWorker = Callable[..., Drained]
"""Type of the fixture ``run_until_drained``, which is the function of that name with the server."""
DrainWorkerAsync = Callable[..., Awaitable[Drained]]
"""Type of the fixture ``run_until_drained_async``."""


def run_until_drained(
    worker: Worker,
    jobs: Iterable[NewJob | Fields] = (),
    *,
    redis_url: str,
    patience: float = PATIENCE_S,
    **settings: Any,
) -> Drained:
    """Enqueue ``jobs`` and run ``worker`` until its group is drained. See `run_until_drained_async`."""
    return anyio.run(partial(run_until_drained_async, worker, jobs, redis_url=redis_url, patience=patience, **settings))


async def run_until_drained_async(
    worker: Worker,
    jobs: Iterable[NewJob | Fields] = (),
    *,
    redis_url: str,
    patience: float = PATIENCE_S,
    **settings: Any,
) -> Drained:
    """Enqueue ``jobs``, run ``worker`` until its group is drained, and return the result.

    The jobs are fields, or `NewJob` objects. ``redis_url`` is the server of the tests. Further settings override those
    of the program. The environment is not read. Raises NotDrainedError if no job ended for ``patience`` seconds, and
    ConfigurationError if the settings are invalid.
    """
    ours = {"recovery": RecoveryMode.EMBEDDED, "backoff_base": 0}
    chosen = settings_of(worker, **ours | settings, redis_url=redis_url)
    async with commands_client(redis_url) as client:
        async with Producer(chosen.stream, redis_url) as producer:
            await producer.enqueue_many(jobs)
        with patch.object(worker, "_settings", chosen):
            running = asyncio.create_task(worker.run())
            try:
                await _wait_until_drained(client, chosen.keys, worker, running, patience)
                worker.stop()
                await _end_reads(client)
                await running
            finally:
                running.cancel()
                await asyncio.wait([running])
        rows: Any = await client.xrange(chosen.keys.dead)
        return Drained(worker.counts, [_dead_letter(flat) for _, flat in rows])


def _dead_letter(flat: list[bytes]) -> DeadLetter:
    pairs = pair_up(flat)
    entry = dict(pairs)
    return DeadLetter(
        job_id=text(entry[FIELD_JOB]),
        reason=text(entry.get(DEAD_PREFIX + b"reason", b"")),
        error=text(entry.get(DEAD_PREFIX + b"error", b"")),
        fields={name: value for name, value in pairs if not name.startswith(RESERVED_PREFIX)},
        deliveries=whole_number(entry.get(FIELD_DELIVERIES), 0),
        traceback=text(entry.get(DEAD_PREFIX + b"traceback", b"")),
    )


async def _wait_until_drained(
    client: Redis, keys: GroupKeys, worker: Worker, running: asyncio.Task[None], patience_s: float
) -> None:
    """Wait until no job is left, and skip the time until scheduled jobs are due. Raises the worker's errors."""
    former, ended, since = worker.process, -1, monotonic()  # no task has begun the next run yet
    while True:
        # Before the look, because the worker makes the group when it joins.
        has_joined = worker.process is not None and worker.process is not former and worker.process.has_joined
        left = await look_at_group(client, keys)
        if has_joined and not (left.oldest_ready_ms or left.in_flight or left.scheduled or left.quarantined):
            return
        if running.done():
            await running
            raise _not_drained(worker, keys, "the worker was stopped", left)
        counts = worker.counts
        if ended != (ended := counts.acked + counts.dead_lettered):
            since = monotonic()
        elif monotonic() - since > patience_s:
            raise _not_drained(worker, keys, f"no job ended for {patience_s:g} s", left)
        if not left.oldest_ready_ms and not left.in_flight:
            await _skip_time(client, keys)
        await anyio.sleep(_POLL_S)


async def _end_reads(client: Redis) -> None:
    """End blocked reads, for which a worker that stops waits. A worker that goes on reads again."""
    with suppress(ResponseError):  # without the rights, the test takes two seconds longer
        for one in await client.client_list():
            if "b" in one["flags"]:
                await client.client_unblock(int(one["id"]))


async def _skip_time(client: Redis, keys: GroupKeys) -> None:
    """Make the next scheduled job due. Quarantined jobs are never due."""
    found: list[tuple[float, str, bytes]] = []
    for schedule in (keys.schedule, keys.stream_schedule):
        rows: Any = await client.zrange(schedule, 0, 0, withscores=True)
        found += [(score, schedule, member) for member, score in rows if score < QUARANTINE_SCORE]
    if found:
        _, schedule, member = min(found)
        await client.zadd(schedule, {member: 0}, xx=True)
        await client.publish(schedule, "0")  # wakes the worker, as an earlier schedule does


def _not_drained(worker: Worker, keys: GroupKeys, problem: str, left: GroupLoad) -> NotDrainedError:
    """Describe the problem in one line, with one more for each job in flight."""
    in_hand = worker.process.in_hand() if worker.process else []
    counts = fields(**worker.counts.facts())
    ready = "jobs wait to be read" if left.oldest_ready_ms else "no job waits to be read"
    jobs = f"{ready}, {left.in_flight} pending, {left.scheduled} scheduled, {left.quarantined} quarantined jobs"
    first = f"{keys.name} is not drained: {problem}. Left: {jobs}. Counts of the worker: {counts}"
    return NotDrainedError("\n".join([first, *map(_describe, in_hand)]))


def _describe(job: Delivery) -> str:
    age = f", runs for {monotonic() - job.started:.1f} s" if job.stage is RUNNING else ""
    return f"  {job.stage.name.lower()}: job {job.id}, delivery {job.deliveries}{age}"
