"""How soon a job starts, with 100 jobs a second.

A producer adds a job every 10 ms with the time in it, over a bare socket. The handler compares this time with its
start. Bare: a loop of ``XREADGROUP COUNT 100`` and ``XACK`` in redis-py, which compares it with the time of the read.
"""

from collections.abc import Callable

from tests.benchmarks.figures import Demand, Result, Row, Spread, at_most_ratio, median_ratio, spread
from tests.benchmarks.stage import Stage, open_stage, result_of
from tests.benchmarks.streams import create_group, progress
from tests.support.processes import Running
from tests.support.waiting import wait_until
from workers.protocol.keys import group_keys

JOBS, QUICK_JOBS = 400, 100
ROUNDS, QUICK_ROUNDS = 3, 1
PER_SECOND = 100
TIMEOUT_S = 60.0
KEYS = group_keys("jobs", "billing")

Start = Callable[[Stage], Running]


async def measure(*, quick: bool) -> Result:
    """Produce for ours and for the bare loop in turn."""
    jobs, rounds = (QUICK_JOBS, QUICK_ROUNDS) if quick else (JOBS, ROUNDS)
    ours, bare = list[list[float]](), list[list[float]]()
    for _ in range(rounds):
        ours.append(await _late_ms(jobs, _worker))
        bare.append(await _late_ms(jobs, _loop))
    one, other = (spread([late for part in parts for late in part]) for parts in (ours, bare))
    p50 = median_ratio([spread(part).p50 for part in ours], [spread(part).p50 for part in bare])
    return Result((_row("p50", one, other, 0, at_most_ratio(1.4), p50), _row("p99", one, other, 1)))


def _row(
    name: str, ours: Spread, bare: Spread, part: int, demand: Demand | None = None, ratio: float | None = None
) -> Row:
    return Row(f"from XADD to the start of the handler, {name}", ours[part], "ms", bare[part], demand, ratio)


def _worker(stage: Stage) -> Running:
    return stage.worker("timed", "--stream", KEYS.stream, "--group", KEYS.group)


def _loop(stage: Stage) -> Running:
    return stage.bare("read-timed", KEYS.stream, KEYS.group, "bare")


async def _late_ms(jobs: int, start: Start) -> list[float]:
    async with open_stage() as stage:
        await create_group(stage.client, KEYS)
        reader = start(stage)

        async def waits() -> bool:
            return int((await stage.client.info("clients"))["blocked_clients"]) == 1

        async def done() -> bool:
            return (await progress(stage.client, KEYS)).done

        await wait_until(waits, "somebody waits for jobs", TIMEOUT_S)
        pacer = stage.pacer(KEYS.stream, jobs, PER_SECOND)
        assert await pacer.wait(TIMEOUT_S) == 0, "the producer failed"
        await wait_until(done, "every job is done", TIMEOUT_S)
        reader.terminate()
        late_ms: list[float] = await result_of(reader)
    assert len(late_ms) == jobs
    return late_ms
