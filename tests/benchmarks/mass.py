"""How fast one healthy worker finishes the jobs of a crashed one, in each recovery mode.

10,000 deliveries of a dead consumer fall due at about the same time. The handler does no work. Time runs from the first
completion to the last, on the server's clock. It includes recovery, reading, running, settling and the journal. The
bare loop is ``XAUTOCLAIM COUNT 100`` and ``XACK`` in redis-py. The worker has 200 slots, and fewer in the last row.
An embedded worker runs the jobs in half of its slots (5 µs a job) while the server recovers a page for the others
(8 µs). Of the 5.5 µs in ``recover.lua``, half are for XPENDING, XRANGE and XCLAIM. While no slot is free, the jobs are
copied, acknowledged, deleted and read again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from redis.asyncio import Redis

from tests.benchmarks.figures import Result, Row, at_most_ratio, median_ratio
from tests.benchmarks.holding import until_held
from tests.benchmarks.stage import Stage, open_stage, result_of, server_knows_claim, stopped
from tests.benchmarks.streams import create_group, progress, strand
from tests.support.waiting import wait_until
from workers.protocol.events import EventName, events_of
from workers.protocol.keys import GroupKeys, group_keys
from workers.protocol.messages import RecoveryMode, Redelivery

SIZE, QUICK_SIZE = 10_000, 2_000
ROUNDS, QUICK_ROUNDS = 3, 1
VISIBILITY_S = 2.0
TIMEOUT_S = 60.0
OURS, BARE = (group_keys(stream, "billing") for stream in ("jobs", "bare"))
VISIBILITY = ("--visibility-timeout", str(VISIBILITY_S))


@dataclass(frozen=True, slots=True)
class _Case:
    """The mode of recovery, and the number of jobs that the worker runs at a time."""

    mode: RecoveryMode
    slots: int
    most: float | None = 3
    """Demand: so many times the bare loop."""
    redelivery: Redelivery | None = None

    def __str__(self) -> str:
        return f"{self.mode}{f', {self.redelivery}' if self.redelivery else ''}, {self.slots} slots"


CASES = (_Case(RecoveryMode.REAPER, 200, most=4), _Case(RecoveryMode.EMBEDDED, 200))
BY_CLAIM = (
    _Case(RecoveryMode.REAPER, 200, redelivery=Redelivery.IN_PLACE),
    _Case(RecoveryMode.EMBEDDED, 200, redelivery=Redelivery.IN_PLACE),
)
DEFAULT = _Case(RecoveryMode.EMBEDDED, 64, most=None)


async def measure(*, quick: bool) -> Result:
    """Strand and recover in each case, and with the bare loop, in turn."""
    size, rounds = (QUICK_SIZE, QUICK_ROUNDS) if quick else (SIZE, ROUNDS)
    demanded = (*CASES, *BY_CLAIM) if await server_knows_claim() else CASES
    ours: dict[_Case, list[float]] = {case: [] for case in (*demanded, DEFAULT)}
    bare: list[float] = []
    for _ in range(rounds):
        for case, seconds in ours.items():
            seconds.append(await _worker_recovers(case, size))
        bare.append(await _bare_s(size))
    rows = [_row(case, size, found, bare) for case, found in ours.items()]
    return Result(tuple(rows))


def _row(case: _Case, size: int, ours: Sequence[float], bare: Sequence[float]) -> Row:
    what = f"{case}: {size:,} stranded jobs, from the first completion to the last"
    demand = at_most_ratio(case.most) if case.most else None
    return Row(what, median(ours) * 1000, "ms", median(bare) * 1000, demand, median_ratio(ours, bare))


async def _worker_recovers(case: _Case, size: int) -> float:
    """Return the seconds from the first completion to the last."""
    async with open_stage() as stage:
        await _strand(stage, OURS, size)
        programs = []
        policy = ("--redelivery", case.redelivery.value) if case.redelivery else ()
        if case.mode is RecoveryMode.REAPER:
            programs.append(stage.reaper("--groups", OURS.name, *VISIBILITY, *policy))
            await until_held(stage.client, OURS)
        flags = ("--stream", OURS.stream, "--group", OURS.group, *VISIBILITY, "--recovery", case.mode.value, *policy)
        programs.append(stage.worker("worker", *flags, "--concurrency", str(case.slots)))

        async def done() -> bool:
            return (await progress(stage.client, OURS)).done

        await wait_until(done, f"{size:,} jobs are done", TIMEOUT_S)
        completed = await _completed_ms(stage.client)
        await stopped(*programs)
    assert len(completed) == size, f"{size:,} deliveries were stranded, {len(completed):,} were completed"
    return (max(completed) - min(completed)) / 1000


async def _completed_ms(client: Redis) -> list[int]:
    """Return when each completion was journalled, in ms of the server's clock."""
    rows = await client.execute_command("XRANGE", OURS.journal, "-", "+")
    events = (event for row in rows for event in events_of(*row))
    return [event.at_ms for event in events if event.event == EventName.ACKED]


async def _bare_s(size: int) -> float:
    async with open_stage() as stage:
        await _strand(stage, BARE, size)
        loop = stage.bare("claim-and-settle", BARE.stream, BARE.group, round(VISIBILITY_S * 1000), size)
        found = await result_of(loop)
    return float(found["seconds"])


async def _strand(stage: Stage, keys: GroupKeys, size: int) -> None:
    await create_group(stage.client, keys)
    await strand(stage.client, keys, size)
