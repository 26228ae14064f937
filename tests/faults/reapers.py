"""Common parts of the tests of a reaper's faults, which are a case with jobs, replicas that look often, and the
evidence."""

import itertools
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from redis.asyncio import Redis

from reaper.drill.history import read_events, read_state, user_fields
from reaper.drill.promises import Execution, FinalState, History, Pairs, check
from reaper.failpoints import claimed_by
from reaper.replicas import GroupReport, Replica, read_replicas
from reaper.service import Reaper
from reaper.settings import ReaperSettings
from tests.faults.deliveries import age, live_on, read_long_ago
from tests.faults.scene import OF_LEASES, QUICK, ranked_reaper, reaper_settings
from tests.support.beats import let_beat, let_beat_at
from tests.support.notes import read_endings, read_notes
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.events import EventName, LifecycleEvent
from workers.protocol.keys import GroupKeys, group_keys, namespace_keys
from workers.protocol.messages import pair_up, read_metadata, text

VISIBILITY_MS = 3_600_000
"""Nothing is overdue by itself within a test, however late a live worker extends. What is to be, is made so."""
LONG_IDLE_MS = 2 * VISIBILITY_MS


class Addressed(Protocol):
    """A server, or several that are reached by one address."""

    @property
    def url(self) -> str:
        """The ``redis_url`` of programs."""


Event = tuple[str, int]
"""What became of the lease, and the token of the term."""


def quick_settings(server: Addressed, **changes: Any) -> ReaperSettings:
    """Return the settings of a replica that does in a second what it does every few seconds otherwise, changed."""
    return reaper_settings(server.url, **changes)


def start_replica(
    processes: Processes, server: Addressed, *, failpoints: Path | None = None, **changes: Any
) -> Running:
    """Start ``reaper run`` as a process with these settings, changed."""
    values = {"redis_url": server.url, **QUICK, **changes}
    flags = [part for setting, value in values.items() for part in (f"--{setting.replace('_', '-')}", str(value))]
    env = {"REAPER_FAILPOINTS": str(failpoints)} if failpoints else None
    return processes.python("-m", "tests.support.paced", "run", *flags, env=env, name="reaper")


@asynccontextmanager
async def running(settings: ReaperSettings, *, before: str = "", after: str = "") -> AsyncIterator["Listened"]:
    """Run a replica in this process until the block ends.

    It comes before or after another one, named by its ID, in the order of every group. Its groups look as if heartbeats
    had been served in them for long.
    """
    if not settings.observe:
        await let_beat_at(settings.redis_url, [group.keys for group in settings.watched])
    reaper = ranked_reaper(settings, before=before, after=after)
    with error_lines() as errors:
        async with reaper:
            yield Listened(reaper, errors)


@asynccontextmanager
async def holding(settings: ReaperSettings, *, before: str = "", after: str = "") -> AsyncIterator["Listened"]:
    """Run a replica in this process until the block ends. It holds the group, or observes it, when the block begins."""
    async with running(settings, before=before, after=after) as listened:
        reaper = listened.reaper
        await wait_until(lambda: reaper.held or (settings.observe and reaper.reports()), "the replica holds the group")
        yield listened


@dataclass
class Listened:
    """A replica in this process, and what it reports of its groups as an error or a warning."""

    reaper: Reaper
    errors: list[str]


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def error_lines() -> Iterator[list[str]]:
    """Gather the errors and warnings that replicas in this process log about their groups."""
    handler, loggers = _Errors(), [logging.getLogger(name) for name in ("reaper.recovery", "workers.upkeep")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def replica_of(holder: str) -> str:
    """Return the ID of the replica in the value of a lease, '' if it is free."""
    return holder.rpartition(".")[0]


async def claimed(failpoints: Path, name: str) -> int:
    """Wait until a process has passed failpoint ``name``. Return its ID."""
    return await wait_until(lambda: claimed_by(failpoints, name) or 0, f"somebody passes {name}")


async def begin_journal(client: Redis, keys: GroupKeys) -> None:
    """Make the stream's journal: terms are noted in it only if it exists."""
    await client.xgroup_create(keys.journal, "none", mkstream=True)
    await client.xgroup_destroy(keys.journal, "none")


@dataclass
class Case:
    """One stream and one group, the jobs that were enqueued there, and their outcomes."""

    server: RedisServer
    client: Redis
    keys: GroupKeys = field(default_factory=lambda: group_keys("orders", "billing"))
    enqueued: dict[str, Pairs] = field(default_factory=dict)
    starts: list[Execution] = field(default_factory=list)
    completions: list[Execution] = field(default_factory=list)
    endings: list[Execution] | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    async def prepared(cls, server: RedisServer, client: Redis, stream: str = "orders", group: str = "billing") -> Self:
        """Return a case whose group exists, and looks as if heartbeats had been served in it for long."""
        case = cls(server, client, group_keys(stream, group))
        await client.xgroup_create(stream, group, "0", mkstream=True)
        await let_beat(client, case.keys)
        await begin_journal(client, case.keys)
        return case

    # ---- jobs

    async def enqueue(self, count: int, **fields: str) -> list[str]:
        """Add jobs as any producer may, with bytes of every kind, duplicate fields, and a number ``n``.

        Returns their IDs.
        """
        pipeline = self.client.pipeline(transaction=False)
        payloads = [self._payload(number, fields) for number in itertools.islice(self._numbers, count)]
        for pairs in payloads:
            pipeline.execute_command("XADD", self.keys.stream, "*", *itertools.chain.from_iterable(pairs))
        jobs = [text(job) for job in await pipeline.execute()]
        self.enqueued.update(zip(jobs, payloads, strict=True))
        return jobs

    @staticmethod
    def _payload(number: int, fields: dict[str, str]) -> Pairs:
        named = [(name.encode(), value.encode()) for name, value in fields.items()]
        return [
            (b"n", b"%d" % number),
            (b"payload", random.Random(number).randbytes(40)),
            (b"tag", b"a"),
            (b"tag", b"b"),
            *named,
        ]

    async def read(self, consumer: str = "w1", count: int = 1_000, source: str | None = None) -> list[str]:
        """Read the ready entries, as a plain worker does. Return entry IDs."""
        entries = await self._read(consumer, count, source or self.keys.stream)
        return [text(entry_id) for entry_id, _ in entries]

    async def _read(self, consumer: str, count: int, source: str) -> list[tuple[bytes, list[bytes]]]:
        reply: Any = await self.client.execute_command(
            "XREADGROUP", "GROUP", self.keys.group, consumer, "COUNT", count, "STREAMS", source, ">"
        )
        return [entry for _, entries in reply or () for entry in entries]

    async def stall(self, *entry_ids: str, times: int = 1, consumer: str = "w1", source: str | None = None) -> None:
        """Make entries overdue that were read, delivered ``times`` times, the last time long ago."""
        await self.client.execute_command(
            "XCLAIM", source or self.keys.stream, self.keys.group, consumer, 0, *entry_ids,
            "IDLE", LONG_IDLE_MS, "RETRYCOUNT", times, "JUSTID",
        )  # fmt: skip

    async def stalled(self, count: int, *, times: int = 1, consumer: str = "w1") -> list[str]:
        """Add jobs and let a worker die over them long ago. Returns their IDs."""
        jobs = await self.enqueue(count)
        stream, group = self.keys.stream, self.keys.group
        read = await read_long_ago(self.client, stream, group, consumer, count, LONG_IDLE_MS, times)
        assert [text(entry_id) for entry_id in read] == jobs, "something else was ready"
        return jobs

    async def doomed(self, count: int) -> list[str]:
        """Add jobs that had their last delivery long ago, as quarantined jobs that were released, each alone.

        Returns their IDs.
        """
        jobs = [job for number in range(count) for job in await self.stalled(1, times=3, consumer=f"alone-{number}")]
        for job in jobs:
            await self.client.hset(self.keys.quarantine, job, "stream,,0")
        return jobs

    async def age(self, idle_ms: int, *consumers: str) -> list[str]:
        """Set the time since the last heartbeat for the deliveries of ``consumers``, or all. Return entry IDs."""
        aged = []
        for source in (self.keys.stream, self.keys.retry):
            aged += await age(self.client, source, self.keys.group, idle_ms, *consumers)
        return [text(entry_id) for entry_id in aged]

    async def make_overdue(self, *consumers: str) -> list[str]:
        """Make the deliveries of ``consumers``, or all, overdue. The owners cannot extend any more.

        Return entry IDs.
        """
        return await self.age(LONG_IDLE_MS, *consumers)

    async def lives_on(self, *, thirds: int) -> None:
        """Let so many thirds of a visibility timeout pass for all that is pending, and see it extended each time."""
        await live_on(self.client, self.keys.stream, self.keys.group, VISIBILITY_MS, thirds=thirds)

    # ---- the lease

    async def end_lease(self, *, in_ms: int = 0) -> None:
        """Let the lease run out, now or soon. Its holder must be dead or paused, because a live one extends it."""
        assert await self.client.pexpire(self.keys.lease, in_ms), "nobody holds the lease"

    async def work_off(self, until: Callable[[FinalState], bool], consumer: str = "plain") -> list[str]:
        """Run the ready jobs, as a plain worker that never fails, until the state is as asked. Return jobs in order."""
        executed: list[str] = []

        async def step() -> bool:
            for source in (self.keys.stream, self.keys.retry):
                executed.extend(await self._run_ready(source, consumer))
            return until(await self.state())

        await wait_until(step, "the jobs are worked off")
        return executed

    async def _run_ready(self, source: str, consumer: str) -> list[str]:
        if not await self.client.exists(source):
            return []
        entries = await self._read(consumer, 1_000, source)
        if entries:
            await self.client.xack(source, self.keys.group, *(entry_id for entry_id, _ in entries))
        jobs = [text(read_metadata(entry_id, pair_up(flat)).job_id) for entry_id, flat in entries]
        executions = [Execution(job) for job in jobs]
        self.starts.extend(executions)
        self.completions.extend(executions)
        return jobs

    # ---- evidence

    async def is_over(self) -> bool:
        """Tell whether no job is left."""
        return nothing_left(await self.state())

    async def all_over(self, ledger: str = "") -> None:
        """Wait until no job is left. Take over the notes of the workers' handlers, which name jobs by number."""
        await wait_until(self.is_over, "all jobs are settled or dead-lettered")
        if ledger:
            jobs = {pairs[0][1].decode(): job for job, pairs in self.enqueued.items()}
            starts, completions = await read_notes(self.client, ledger)
            self.starts = [Execution(jobs[start.job]) for start in starts]
            self.completions = [Execution(jobs[done.job]) for done in completions]
            self.endings = [Execution(jobs[end.job]) for end in await read_endings(self.client, ledger)]

    async def state(self) -> FinalState:
        """Return where every job is."""
        return await read_state(self.client, self.keys)

    async def pending(self) -> list[tuple[str, str, int]]:
        """Return ID, consumer and delivery count of the stream's pending entries."""
        rows: Any = await self.client.execute_command("XPENDING", self.keys.stream, self.keys.group, "-", "+", 100_000)
        return [(text(entry_id), text(consumer), count) for entry_id, consumer, _, count in rows]

    async def pending_count(self) -> int:
        """Return how many entries of the stream are pending."""
        summary: Any = await self.client.execute_command("XPENDING", self.keys.stream, self.keys.group)
        return int(summary[0])

    async def events(self, *names: str) -> list[LifecycleEvent]:
        """Return the group's lifecycle events of these names (all but those of its lease), oldest first."""
        found = await read_events(self.client, self.keys)
        return [event for event in found if (event.event in names if names else event.event not in OF_LEASES)]

    async def recovered(self) -> dict[str, list[int]]:
        """Return, by job, the tokens of the terms that made it ready, quarantined or dead-lettered it."""
        by_job: dict[str, list[int]] = {}
        for event in await self.events(EventName.RECOVERED, EventName.QUARANTINED, EventName.DEAD_LETTERED):
            by_job.setdefault(event.job, []).append(int(event.data["token"]))
        return by_job

    async def payloads(self, source: str | None = None) -> dict[str, Pairs]:
        """Return the user's fields of the entries of ``source`` (the stream), by job."""
        rows: Any = await self.client.execute_command("XRANGE", source or self.keys.stream, "-", "+")
        return {text(read_metadata(entry_id, pair_up(flat)).job_id): user_fields(flat) for entry_id, flat in rows}

    async def lease_events(self) -> list[Event]:
        """Return the changes of the lease as event and token, oldest first."""
        return [(event.event, int(event.data["token"])) for event in await self.lease_history()]

    async def lease_history(self) -> list[LifecycleEvent]:
        """Return the events of the lease."""
        return await self.events(*OF_LEASES)

    async def holder(self) -> str:
        """Return the value of the group's lease, '' if it is free."""
        return text(await self.client.get(self.keys.lease) or b"")

    async def holds_it(self) -> str:
        """Wait until a replica holds the lease. Return its ID."""
        return replica_of(await wait_until(self.holder, "a replica holds the lease"))

    async def token(self) -> int:
        """Return the number of the group's latest term."""
        return int(await self.client.hget(self.keys.settings, "token") or 0)

    async def replicas(self, namespace: str = "reaper") -> tuple[Replica, ...]:
        """Return what replicas registered."""
        return await read_replicas(self.client, namespace_keys(namespace))

    async def report(self, namespace: str = "reaper") -> GroupReport | None:
        """Return what the replica registered of the group that serves or observes it, or that cannot serve it."""
        reports = [one.groups[self.keys.name] for one in await self.replicas(namespace) if self.keys.name in one.groups]
        return max(reports, key=lambda report: report.token, default=None)

    async def wait_for_report(
        self, predicate: Callable[[GroupReport], bool], description: str, namespace: str = "reaper"
    ) -> GroupReport:
        """Wait until a replica registers what ``predicate`` asks for."""

        async def found() -> GroupReport | None:
            report = await self.report(namespace)
            return report if report and predicate(report) else None

        report = await wait_until(found, description)
        assert report
        return report

    async def violations(
        self,
        *,
        finished: bool = False,
        poison: frozenset[str] | None = None,
        max_deliveries: int = 3,
    ) -> list[str]:
        """Return what the checker of the invariants finds."""
        state = await self.state()
        return check(
            History(
                enqueued=self.enqueued,
                state=state,
                events=await read_events(self.client, self.keys),
                starts=self.starts,
                completions=self.completions,
                endings=self.endings,
                visibility_ms=VISIBILITY_MS,
                max_deliveries=max_deliveries,
                poison=poison,
                finished=finished,
            )
        )


def nothing_left(state: FinalState) -> bool:
    """Tell whether all work is over."""
    return not (state.ready or state.pending or state.scheduled or state.released)
