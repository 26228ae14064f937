"""A producer enqueues jobs, each once."""

from collections.abc import Sequence
from typing import NamedTuple

from redis.asyncio import Redis

from workers.protocol.keys import StreamKeys
from workers.protocol.scripts import load_script

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


async def enqueue(
    client: Redis, keys: StreamKeys, jobs: Sequence[PackedJob], *, call: str, call_ms: int, job_ms: int
) -> None:
    """Enqueue jobs, all or none (``enqueue.lua``). The same call again adds nothing.

    ``call``: its own ID, '' where every job has one that its producer chose; it is remembered for ``call_ms``, and a
    job's for ``job_ms`` from when the job is ready.
    """
    words: list[str | bytes | int] = [call, call_ms, job_ms]
    for job in jobs:
        words += (job.job_id, int(job.chosen), job.delay_ms, len(job.words), *job.words)
    await ENQUEUE.run(client, (keys.stream, keys.schedule, keys.enqueued), words)
