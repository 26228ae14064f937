"""Common parts of the tests of network, memory and foreign workers, which are one stream and group, and waiting jobs.

Each job's fields say how its handler acts. ``hold`` waits for the gate, ``fail`` raises, ``reject`` gives up. `Handler`
is the handler of workers inside the test. `tests.faults.program` is a worker as a process.

No delivery falls due, and no lease runs out, while a test waits, because a busy machine would decide then which event
comes first. Deliveries are made overdue on the server (`strand`, `make_overdue`), and a lease is ended there
(`end_lease`).
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from redis.asyncio import Redis

from reaper.drill.history import read_events, read_state
from reaper.drill.promises import Execution, History, Pairs, check
from reaper.replicas import GroupReport, read_replicas
from reaper.service import Reaper
from reaper.settings import ReaperSettings
from reaper.sharing.ranking import ranked
from tests.faults.deliveries import age, live_on, read_long_ago
from tests.support.beats import let_beat, let_beat_at
from tests.support.knobs import refreshing
from tests.support.paced import PacedSettings
from tests.support.waiting import wait_until
from workers import Job, Reject, Worker, WorkerSettings
from workers.protocol.calls.declined import RecoveryWait, recovery_wait
from workers.protocol.events import EventName, LifecycleEvent
from workers.protocol.keys import GroupKeys, group_keys, namespace_keys
from workers.protocol.messages import RecoveryMode, text
from workers.runtime.clock import server_ms

STREAM, GROUP = "orders", "billing"
KEYS = group_keys(STREAM, GROUP)
NAMESPACE = namespace_keys("reaper")
VISIBILITY_S = 3_600
"""Nothing is overdue by itself within a test, however late a live worker extends. What is to be, is made so."""
OVERDUE_MS = 2 * VISIBILITY_S * 1_000
OF_LEASES = frozenset({EventName.LEASE_TAKEN, EventName.LEASE_LEFT})

Fields = Mapping[str | bytes, str | bytes]


# --- jobs ---------------------------------------------------------------------------------------------------


@dataclass
class Handler:
    """Runs jobs inside the test, and notes what it has started and completed."""

    starts: list[Execution] = field(default_factory=list)
    completions: list[Execution] = field(default_factory=list)
    gate: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(self, job: Job) -> None:
        """Do what the job's fields say."""
        self.starts.append(Execution(job.id, job.generation))
        if b"hold" in job.fields:
            await self.gate.wait()
        if b"fail" in job.fields:
            raise RuntimeError("told to fail")
        if b"reject" in job.fields:
            raise Reject("told to give up")
        self.completions.append(Execution(job.id, job.generation))

    def open_gate(self) -> None:
        """Let the jobs go on that hold."""
        self.gate.set()

    async def has_started(self, number: int) -> None:
        """Wait for so many starts."""
        await wait_until(lambda: len(self.starts) >= number, f"{number} jobs have started")


async def enqueue(client: Redis, number: int = 1, **fields: str | bytes) -> dict[str, Pairs]:
    """Add ``number`` jobs by bare XADDs. Return their fields by job ID."""
    pairs = [(b"n", b""), *((name.encode(), _bytes(value)) for name, value in fields.items())]
    pipeline = client.pipeline(transaction=False)
    rows = [[(b"n", str(n).encode()), *pairs[1:]] for n in range(number)]
    for row in rows:
        pipeline.execute_command("XADD", STREAM, "*", *(part for pair in row for part in pair))
    entry_ids = await pipeline.execute()
    return {text(entry_id): row for entry_id, row in zip(entry_ids, rows, strict=True)}


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


async def create_group(client: Redis) -> None:
    """Create the stream and its group, which looks as if heartbeats had been served in it for long."""
    await client.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    await let_beat(client, KEYS)


async def strand(
    client: Redis, number: int, consumer: str = "gone", *, overdue: bool = False, times: int = 1
) -> list[bytes]:
    """Let a consumer that never comes back read ``number`` ready jobs for the ``times``-th time. Return entry IDs.

    With ``overdue``, that was two visibility timeouts ago.
    """
    idle_ms = OVERDUE_MS if overdue else 0
    entry_ids = await read_long_ago(client, STREAM, GROUP, consumer, number, idle_ms, times)
    assert len(entry_ids) == number
    return entry_ids


async def make_overdue(client: Redis, *consumers: str) -> list[bytes]:
    """Make the deliveries of these consumers, or all, overdue. Return entry IDs.

    The consumers must be dead or paused, because an extension makes deliveries young again.
    """
    aged = await age(client, KEYS.stream, GROUP, OVERDUE_MS, *consumers)
    return aged + await age(client, KEYS.retry, GROUP, OVERDUE_MS, *consumers)


async def lives_on(client: Redis, *, thirds: int) -> None:
    """Let so many thirds of a visibility timeout pass for all that is pending, and see it extended each time."""
    await live_on(client, STREAM, GROUP, VISIBILITY_S * 1_000, thirds=thirds)


async def make_due(client: Redis) -> None:
    """Make due now what delayed enqueues wait for. A replica sees it at its next tick."""
    for member in await client.zrange(KEYS.stream_schedule, 0, -1):
        await client.execute_command("ZADD", KEYS.stream_schedule, "XX", 1, member)


async def end_lease(client: Redis, keys: GroupKeys = KEYS) -> None:
    """Let the lease run out, now. Its holder must be dead or paused, or it would only learn that it has lost it."""
    assert await client.pexpire(keys.lease, 0), "nobody holds the lease"


async def token_of(client: Redis, keys: GroupKeys = KEYS) -> int:
    """Return the number of the group's latest term; 0 = there was none."""
    return int(await client.hget(keys.settings, "token") or 0)


async def recovery_waits(client: Redis, keys: GroupKeys = KEYS) -> RecoveryWait | None:
    """Return for how long recovery of the group waits now, if it does."""
    fields: Any = await client.hgetall(keys.settings)
    return recovery_wait({text(name): text(value) for name, value in fields.items()}, await server_ms(client))


# --- workers and reapers ------------------------------------------------------------------------------------


def worker_settings(url: str, **changes: Any) -> WorkerSettings:
    """Return the settings of a worker of the scene, with failed jobs ready again at once."""
    defaults = {
        "redis_url": url,
        "stream": STREAM,
        "group": GROUP,
        "concurrency": 16,
        "visibility_timeout": VISIBILITY_S,
        "backoff_base": 0,
    }
    return WorkerSettings(**{**defaults, **changes})


@asynccontextmanager
async def running_worker(url: str, handler: Callable[[Job], Any], **changes: Any) -> AsyncIterator[Worker]:
    """Run a worker inside the test. At the end it is stopped, and may drain.

    ``refresh_s`` is the interval of reading the group settings, for all workers that run meanwhile. Otherwise a setting
    decides.
    """
    refresh_s = changes.pop("refresh_s", None)
    worker = Worker(settings=worker_settings(url, **changes))
    worker.handler(handler)
    if worker.settings.recovery is not RecoveryMode.REAPER:
        await let_beat_at(worker.settings.redis_url, [worker.settings.keys])
    with refreshing(refresh_s):
        async with anyio.create_task_group() as tasks:
            await tasks.start(worker.run)
            yield worker
            worker.stop()


QUICK: dict[str, Any] = {
    "groups": f"{STREAM}/{GROUP}",
    "visibility_timeout": VISIBILITY_S,
    "lease_ttl": 3_600,
    "tick_interval": 0.05,
    "full_scan_interval": 0.5,
    "registration_interval": 0.5,
    "heartbeat_interval": 0.2,
}
"""Replicas do in a second what they do every few seconds otherwise. No lease and no delivery runs out by itself, so a
busy machine ends no term, and takes no delivery from a worker that lives."""


def reaper_settings(url: str, **changes: Any) -> ReaperSettings:
    """Return the settings of a replica of the scene. It looks often, and does not wait."""
    return PacedSettings(**{"redis_url": url, **QUICK, **changes})


def ranked_reaper(settings: ReaperSettings, *, before: str = "", after: str = "") -> Reaper:
    """Make a replica that comes before or after these, by their IDs, in the order of every group.

    Without a name, chance decides, as in production.
    """
    while True:
        reaper = Reaper(settings)
        order = [one for one in (after, reaper.replica_id, before) if one]
        if all(ranked(order, group.keys.name) == order for group in settings.watched):
            return reaper


@asynccontextmanager
async def running_reaper(url: str, *, before: str = "", after: str = "", **changes: Any) -> AsyncIterator[Reaper]:
    """Run a replica inside the test. Its groups look as if heartbeats had been served in them for long.

    It comes before or after another one in the order of every group (`ranked_reaper`).
    """
    settings = reaper_settings(url, **changes)
    if not settings.observe:
        await let_beat_at(settings.redis_url, [group.keys for group in settings.watched])
    async with ranked_reaper(settings, before=before, after=after) as reaper:
        yield reaper


async def holds(reaper: Reaper) -> int:
    """Wait until ``reaper`` holds a group. Return the token of the term."""

    def token() -> int:
        return max((report.token for report in reaper.reports().values()), default=0)

    return await wait_until(token, "the replica holds a group")


# --- results


async def nothing_left(client: Redis, keys: GroupKeys = KEYS) -> None:
    """Wait until no job is ready, pending or scheduled."""

    async def empty() -> bool:
        state = await read_state(client, keys)
        return not (state.ready or state.pending or state.scheduled or state.released)

    await wait_until(empty, f"nothing of {keys.name} is ready, pending or scheduled")


async def events(client: Redis, *names: str) -> list[LifecycleEvent]:
    """Return the group's lifecycle events of these names, oldest first."""
    return [event for event in await read_events(client, KEYS) if event.event in names]


async def all_events(client: Redis) -> list[LifecycleEvent]:
    """Return the group's lifecycle events but those of its lease, oldest first."""
    return [event for event in await read_events(client, KEYS) if event.event not in OF_LEASES]


async def count_events(client: Redis) -> Counter[str]:
    """Return how many lifecycle events of each name the group's journal holds, but for those of its lease."""
    return Counter(event.event for event in await all_events(client))


async def violations(
    client: Redis,
    enqueued: Mapping[str, Pairs],
    handlers: Iterable[Handler] = (),
    *,
    journal: bool = True,
    **facts: Any,
) -> list[str]:
    """Return the errors in the history of the group, from the one checker. Without ``journal`` it is not read."""
    state = await read_state(client, KEYS)
    handlers = list(handlers)
    return check(
        History(
            enqueued=enqueued,
            state=state,
            events=await read_events(client, KEYS) if journal else (),
            starts=[start for handler in handlers for start in handler.starts],
            completions=[done for handler in handlers for done in handler.completions] if handlers else None,
            **facts,
        )
    )


def times(notes: Sequence[Execution | LifecycleEvent]) -> Counter[str]:
    """Return how often each job occurs."""
    return Counter(note.job for note in notes)


async def scanned_by_term_after(client: Redis, token: int) -> GroupReport:
    """Wait until the holder in a later term than ``token`` has scanned everything. Return its registration."""

    async def report() -> GroupReport | None:
        for replica in await read_replicas(client, NAMESPACE):
            group = replica.groups.get(KEYS.name)
            if group and group.token > token and group.last_full_scan_ms:
                return group
        return None

    found = await wait_until(report, f"a term after {token} has scanned")
    assert found
    return found
