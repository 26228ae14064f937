"""Workers inside the test's own event loop, and short ways to observe them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import anyio
from anyio.abc import TaskStatus
from redis.asyncio import Redis

from reaper.drill.history import read_events
from tests.support.beats import let_beat_at
from tests.support.knobs import refreshing
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers import Job, Report, Worker, WorkerEvent
from workers.loop.handlers import Handler
from workers.loop.in_flight import Delivery, Source
from workers.process import WorkerProcess
from workers.protocol.keys import GroupKeys, group_keys
from workers.protocol.messages import RecoveryMode, text

KEYS = group_keys("orders", "billing")


_REFRESH_S = WeakKeyDictionary[Worker, float]()


def make_worker(
    url: str, handler: Handler, keys: GroupKeys = KEYS, *, refresh_s: float | None = None, **settings: Any
) -> Worker:
    """Return a worker of ``keys`` with ``handler``.

    Failed jobs are ready again at once, because there is no leader here.

    ``refresh_s`` is the interval of reading the group settings, and of the tasks that `running` runs beside it.
    """
    worker = Worker(keys.stream, keys.group, redis_url=url, **{"backoff_base": 0, **settings})
    worker.handler(handler)
    if refresh_s is not None:
        _REFRESH_S[worker] = refresh_s
    return worker


async def accept(_job: Job) -> None:
    """Return, so the job is acknowledged."""


async def hang(_job: Job) -> None:
    """Run until it is cancelled."""
    await anyio.sleep_forever()


class Runs(list[tuple[int, int]]):
    """A handler that notes field ``n`` and the delivery count of each job."""

    async def __call__(self, job: Job) -> None:
        """Note the job."""
        self.append((number_of(job), job.deliveries))


class Holding:
    """A handler that waits for its gate, returns its answer, and notes how each job ended."""

    def __init__(self, answer: object = None) -> None:
        self.started: list[Job] = []
        self.ended: list[tuple[int, str]] = []
        self.gate = anyio.Event()
        self._answer = answer

    async def __call__(self, job: Job) -> object:
        """Run until the gate is open."""
        self.started.append(job)
        try:
            await self.gate.wait()
        except BaseException:
            self.ended.append((number_of(job), "cancelled"))
            raise
        self.ended.append((number_of(job), "done"))
        return self._answer

    async def has_started(self, jobs: int = 1) -> None:
        """Wait until so many jobs run."""
        await wait_until(lambda: len(self.started) >= jobs, f"{jobs} jobs run")


def reports_of(worker: Worker, event: WorkerEvent) -> list[Report]:
    """Return the list of reports that the worker's callbacks for an event will get."""
    reports: list[Report] = []

    @worker.on(event)
    async def note(report: Report) -> None:
        reports.append(report)

    return reports


def process_of(worker: Worker) -> WorkerProcess:
    """Return the running process of a worker."""
    assert worker.process is not None
    return worker.process


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[Worker]:
    """Run workers until the block ends. Then they stop and drain. A block that fails ends them at once."""
    refresh_s = min((_REFRESH_S[one] for one in workers if one in _REFRESH_S), default=None)
    for one in workers:
        if one.settings.recovery is not RecoveryMode.REAPER:
            await let_beat_at(one.settings.redis_url, [one.settings.keys])
    with refreshing(refresh_s):
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                await tasks.start(_starting(worker))
            yield workers[0]
            for worker in workers:
                worker.stop()


def _starting(worker: Worker) -> Callable[..., Any]:
    async def start(*, task_status: TaskStatus[None]) -> None:
        await worker.run(task_status=task_status)

    return start


async def enqueue(client: Redis, *numbers: int, stream: str = KEYS.stream) -> list[str]:
    """Add a job with field ``n`` for each number. Return the entry IDs."""
    return [await add(client, {"n": number}, stream=stream) for number in numbers]


async def add(client: Redis, fields: dict[str, str | int], *, stream: str = KEYS.stream) -> str:
    """Add one job. Return its entry ID."""
    entry_id: Any = await client.execute_command(
        "XADD", stream, "*", *(word for pair in fields.items() for word in pair)
    )
    return text(entry_id)


async def dead_letters(client: Redis) -> list[tuple[str, list[bytes]]]:
    """Return the dead letters as pairs of entry ID and flat fields."""
    rows: Any = await client.xrange(KEYS.dead)
    return [(text(entry_id), flat) for entry_id, flat in rows]


def field_of(flat: list[bytes], name: bytes) -> bytes:
    """Return one field of a flat list, or the last of duplicates."""
    return dict(zip(flat[::2], flat[1::2], strict=True))[name]


async def blocked(client: Redis) -> bool:
    """Return whether a client blocks in a read."""
    info: dict[str, Any] = await client.info("clients")
    return bool(info["blocked_clients"])


def number_of(job: Job) -> int:
    """Return field ``n`` of a job."""
    return int(job.fields[b"n"])


def key_of(job: Job) -> str:
    """Return the key of a delivery's stream, which is the group's, or its retry stream's."""
    return job._origin.key


async def pending_of(client: Redis, keys: GroupKeys = KEYS, *, stream: str = "") -> list[tuple[str, str, int]]:
    """Return the pending entries as entry ID, consumer and delivery count."""
    rows: Any = await client.xpending_range(stream or keys.stream, keys.group, "-", "+", 10_000)
    return [(row[0].decode(), row[1].decode(), row[3]) for row in rows]


async def consumers_of(client: Redis, keys: GroupKeys = KEYS) -> list[str]:
    """Return the names of the group's consumers."""
    return sorted(row["name"].decode() for row in await client.xinfo_consumers(keys.stream, keys.group))


async def event_names(client: Redis, keys: GroupKeys = KEYS) -> list[str]:
    """Return the names of the group's lifecycle events, in order."""
    return [event.event for event in await read_events(client, keys)]


def looks_at_pending(server: RedisServer) -> int:
    """Count the looks at the pending entries list since the test began. An idle worker looks when it takes stock."""
    calls: int = server.command("INFO", "commandstats").get("cmdstat_xpending", {}).get("calls", 0)
    return calls


async def wait_for_settled(worker: Worker, jobs: int) -> None:
    """Wait until so many deliveries have ended in any way."""

    def ended() -> bool:
        counts = worker.counts
        ends = (counts.acked, counts.nacked, counts.dead_lettered, counts.rejected, counts.held)
        return sum(ends) >= jobs

    await wait_until(ended, f"{jobs} deliveries have ended")


def make_job(
    *flat: bytes, entry_id: bytes = b"1700000000000-0", times: int = 1, source: Source | None = None, limit: int = 3
) -> Delivery:
    """Return a delivery of an entry with these flat fields."""
    return Delivery(
        source or Source(KEYS.stream, KEYS.stream),
        entry_id,
        flat or (b"n", b"1"),
        times_delivered=times,
        max_deliveries=limit,
        delivered_ms=1_700_000_000_250,
        proven=monotonic(),
    )
