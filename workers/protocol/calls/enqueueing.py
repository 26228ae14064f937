"""A producer enqueues jobs, each once."""

from collections.abc import Sequence
from typing import NamedTuple

import redis
from redis.asyncio import Redis

from workers.protocol.keys import StreamKeys
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


async def enqueue(client: Redis, request: Enqueueing) -> list[bool]:
    """Enqueue jobs. Return for each whether this call has added it."""
    return [added == 1 for added in await ENQUEUE.run(client, *_spelt(request))]


def enqueue_blocking(client: redis.Redis, request: Enqueueing) -> list[bool]:
    """Do the same in a thread that may block."""
    return [added == 1 for added in ENQUEUE.run_blocking(client, *_spelt(request))]


def _spelt(request: Enqueueing) -> tuple[Keys, Words]:
    words: list[str | bytes | int] = [request.call, request.call_ms, request.job_ms]
    for job in request.jobs:
        words += (job.job_id, int(job.chosen), job.delay_ms, len(job.words), *job.words)
    keys = request.keys
    return (keys.stream, keys.schedule, keys.enqueued), words
