"""A producer enqueues jobs, each once."""

from collections.abc import Sequence
from typing import NamedTuple

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

    def words(self) -> tuple[Keys, Words]:
        """Return keys and arguments. The script returns for each job 1 if this call has added it, else 0."""
        words: list[str | bytes | int] = [self.call, self.call_ms, self.job_ms]
        for job in self.jobs:
            words += (job.job_id, int(job.chosen), job.delay_ms, len(job.words), *job.words)
        return (self.keys.stream, self.keys.schedule, self.keys.enqueued), words
