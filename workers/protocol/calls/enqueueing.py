"""A producer enqueues jobs, each once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import redis
from redis.asyncio import Redis

from workers.protocol.errors import NotReplicatedError
from workers.protocol.keys import StreamKeys
from workers.protocol.meaning import is_contact_error
from workers.protocol.messages import counted, text
from workers.protocol.scripts import Keys, Words, load_script

ENQUEUE = load_script("workers.protocol", "enqueue")


class PackedJob(NamedTuple):
    """A job on its way to Redis."""

    job_id: bytes
    chosen: bool
    """Its producer chose the ID, so that it may be there already."""
    delay_ms: int
    words: list[bytes]
    """Field, value …"""
    size: int
    """Bytes of the words."""


class Enqueueing(NamedTuple):
    """One call that enqueues jobs, all or none (``enqueue.lua``). The same call again adds no job."""

    keys: StreamKeys
    jobs: Sequence[PackedJob]
    call: str
    """Its own ID."""
    call_ms: int
    """How long the call is remembered."""
    job_ms: int
    """How long a job's ID that its producer chose is remembered, from when the job is ready."""
    replicas: int = 0
    """How many replicas of Redis are to have the jobs before the call ends; 0 = nobody waits for them."""
    replicas_ms: int = 0
    """How long they are waited for."""


async def enqueue(client: Redis, request: Enqueueing) -> list[bool]:
    """Enqueue jobs. Return for each whether this call has added it. Raises NotReplicatedError."""
    if not request.replicas:
        return _added(await ENQUEUE.run(client, *_spelt(request)))
    return _replicated(request, *await ENQUEUE.run_and_then(client, *_spelt(request), _wait(request)))


def enqueue_blocking(client: redis.Redis, request: Enqueueing) -> list[bool]:
    """Do the same in a thread that may block."""
    if not request.replicas:
        return _added(ENQUEUE.run_blocking(client, *_spelt(request)))
    return _replicated(request, *ENQUEUE.run_and_then_blocking(client, *_spelt(request), _wait(request)))


def _wait(request: Enqueueing) -> Words:
    return "WAIT", request.replicas, request.replicas_ms


def _added(reply: Any) -> list[bool]:
    return [one == 1 for one in reply]


def _replicated(request: Enqueueing, jobs: Any, reply: Any) -> list[bool]:
    """Judge the reply to WAIT, which is the number of replicas that have all jobs, or an error."""
    error = reply if isinstance(reply, Exception) else None
    if error is not None and is_contact_error(error):
        raise error  # the master was demoted during the wait, so the state is unknown, and the call is made again
    if error is None and int(reply) >= request.replicas:
        return _added(jobs)
    had = (
        f"it is unknown which replicas have them ({error})"
        if error
        else f"{reply} of {request.replicas} replicas confirmed them within {request.replicas_ms} ms"
    )
    raise NotReplicatedError(
        f"enqueued {counted(len(request.jobs), 'job')} of {request.keys.stream!r}, but a failover can lose "
        f"them: {had}. The first is {text(request.jobs[0].job_id)}. If they have job_ids of your own, enqueue "
        "them again: none is added twice."
    ) from error


def _spelt(request: Enqueueing) -> tuple[Keys, Words]:
    words: list[str | bytes | int] = [request.call, request.call_ms, request.job_ms]
    for job in request.jobs:
        words += (job.job_id, int(job.chosen), job.delay_ms, len(job.words), *job.words)
    keys = request.keys
    return (keys.stream, keys.schedule, keys.enqueued), words
