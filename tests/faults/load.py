"""Enqueues jobs at a steady rate, with a plain producer, and notes each execution."""

import itertools
from dataclasses import dataclass, field

import anyio

from reaper.drill.history import user_fields
from reaper.drill.promises import Execution, Pairs
from tests.support.servers import RedisServer
from workers import Job, NewJob, Producer
from workers.protocol.messages import pair_up, read_metadata, text

RATE, BATCH = 200, 10
"""Jobs a second, and in a call."""


@dataclass
class Load:
    """The jobs of one stream, with their starts and completions."""

    stream: str
    calls: list[tuple[float, dict[str, Pairs]]] = field(default_factory=list)
    """When it was begun, and the jobs of every call that came back, with their fields."""
    starts: list[Execution] = field(default_factory=list)
    completions: list[Execution] = field(default_factory=list)
    done_at: dict[str, float] = field(default_factory=dict)

    @property
    def enqueued(self) -> dict[str, Pairs]:
        """All jobs that were accepted."""
        return self.since(0)

    async def run(self, url: str) -> None:
        """Enqueue until cancelled."""
        numbers = itertools.count()
        async with Producer(self.stream, url) as producer:
            while True:
                await self.enqueue(producer, [[(b"n", b"%d" % n)] for n in itertools.islice(numbers, BATCH)])
                began = self.calls[-1][0]
                await anyio.sleep(max(0.0, began + BATCH / RATE - anyio.current_time()))  # a rate, not a wait

    async def enqueue(self, producer: Producer, rows: list[Pairs]) -> None:
        """Enqueue jobs, and remember them."""
        began = anyio.current_time()
        jobs = await producer.enqueue_many([NewJob(row) for row in rows])
        self.calls.append((began, dict(zip(jobs, rows, strict=True))))

    async def handle(self, job: Job) -> None:
        """Only note it."""
        self.starts.append(Execution(job.id, job.generation))
        self.completions.append(Execution(job.id, job.generation))
        self.done_at.setdefault(job.id, anyio.current_time())

    def since(self, moment: float) -> dict[str, Pairs]:
        """Return the jobs of calls that were begun after ``moment``, and came back."""
        return {job: row for began, jobs in self.calls if began > moment for job, row in jobs.items()}

    def done_since(self, moment: float) -> list[float]:
        """Return when those of them were done that were, the first one first."""
        return sorted(self.done_at[job] for job in self.since(moment) if job in self.done_at)


def jobs_at(node: RedisServer, stream: str) -> dict[str, Pairs]:
    """Return the jobs that ``node`` has received, done or not. The stream's entries are deleted only for a copy."""
    with node.client() as client:
        own = client.client()
        if "cluster-enabled" in node.config:
            own.execute_command("READONLY")
        rows = own.execute_command("EVAL", "return redis.call('XRANGE', KEYS[1], '-', '+')", 1, stream)
        own.close()
    return {text(read_metadata(entry_id, pair_up(flat)).job_id): user_fields(flat) for entry_id, flat in rows}
