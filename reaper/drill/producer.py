"""Replays the trace with plain ``XADD`` at the planned times, as producers in any language do."""

import random
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import anyio

from reaper.drill.records import Enqueued
from reaper.drill.stage import Stage
from reaper.drill.trace import PlannedJob
from workers.protocol.messages import text

TICK_S = 0.02
PAYLOAD_BYTES = 64
_POISON_DURATION = timedelta(seconds=1)
_BATCH = 50  # jobs in one pipeline, which the server reads at once, so it counts as one request


@dataclass(slots=True)
class Producer:
    """Enqueues the planned jobs and added ones, and remembers the jobs that Redis accepted."""

    stage: Stage
    jobs: Sequence[PlannedJob]
    enqueued: list[Enqueued] = field(default_factory=list)
    finished: bool = False
    """Every planned job is in."""
    poisonous: int = 0
    """Poison jobs that were put in, or are about to be."""
    writing: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while the drill writes to Redis. A fault that must not meet a write holds it too."""
    _added: int = 0

    async def run(self) -> None:
        """Enqueue each job when its time has come, counted from now. Raises redis-py's errors."""
        started, sent = anyio.current_time(), 0
        while sent < len(self.jobs):
            passed = timedelta(seconds=anyio.current_time() - started)
            due = bisect_right(self.jobs, passed, lo=sent, key=lambda job: job.at)
            await self._enqueue(self.jobs[sent:due])
            sent = due
            await anyio.sleep(TICK_S)
        self.finished = True

    async def poison(self, count: int) -> list[Enqueued]:
        """Enqueue jobs that kill each process that runs them."""
        self.poisonous += count
        return await self.add(count, _POISON_DURATION, poison=True)

    async def add(self, count: int, duration: timedelta, *, poison: bool = False) -> list[Enqueued]:
        """Enqueue ``count`` more jobs at once, each of which takes ``duration``."""
        first = len(self.jobs) + self._added + 1
        self._added += count
        return await self._enqueue([PlannedJob(first + n, timedelta(0), duration) for n in range(count)], poison=poison)

    async def _enqueue(self, jobs: Sequence[PlannedJob], *, poison: bool = False) -> list[Enqueued]:
        batches = (jobs[first : first + _BATCH] for first in range(0, len(jobs), _BATCH))
        return [job for batch in batches for job in await self._send(batch, poison=poison)]

    async def _send(self, jobs: Sequence[PlannedJob], *, poison: bool) -> list[Enqueued]:
        fields = [self._fields(job, poison=poison) for job in jobs]
        pipeline = self.stage.client.pipeline(transaction=False)
        for pairs in fields:
            words = [word for pair in pairs for word in pair]
            pipeline.execute_command("XADD", self.stage.keys.stream, "*", *words)
        async with self.writing:
            entry_ids = await pipeline.execute()
        at = time.time()
        accepted = [
            Enqueued(job.n, text(entry_id), at, pairs)
            for job, pairs, entry_id in zip(jobs, fields, entry_ids, strict=True)
        ]
        self.enqueued += accepted
        return accepted

    def _fields(self, job: PlannedJob, *, poison: bool) -> list[tuple[bytes, bytes]]:
        """Return the fields of a job. The payload is the same for the same seed."""
        payload = random.Random(f"{self.stage.settings.seed}/{job.n}").randbytes(PAYLOAD_BYTES)
        duration_ms = round(job.duration.total_seconds() * 1000)
        fields = [(b"n", b"%d" % job.n), (b"duration_ms", b"%d" % duration_ms), (b"payload", payload)]
        return [*fields, (b"poison", b"1")] if poison else fields
