"""How fast jobs that do no work are finished far away from their Redis.

Two processes with 64 slots each drain a stream over a forwarder that holds every byte for half of a round trip, each
way. Bare: two loops of redis-py that acknowledge the last 64 and read the next 64 in one round trip. A worker with 64
slots cannot be faster than 64 jobs a round trip.
"""

from collections.abc import Sequence
from statistics import median

import anyio

from tests.benchmarks.figures import Result, Row, at_least_ratio, median_ratio
from tests.benchmarks.holding import until_held
from tests.benchmarks.stage import Stage, open_stage, stopped
from tests.benchmarks.streams import create_group, enqueue, progress, server_ms
from tests.support.processes import Running
from tests.support.waiting import wait_until
from workers.protocol.keys import group_keys

PROCESSES, SLOTS = 2, 64
ROUND_TRIPS = {5.0: 300, 50.0: 60, 200.0: 40}
"""In ms, and how many of them a drain takes at least."""
QUICK_ROUND_TRIPS = {5.0: 60}
ROUNDS, QUICK_ROUNDS = 3, 1
DEMANDED_RATIO = 0.95
"""Not 1: the loops acknowledge and read in one call, and ours settle what they read last half a round trip later."""
TIMEOUT_S = 120.0
POLL_S = 0.002
KEYS = group_keys("jobs", "billing")


async def measure(*, quick: bool) -> Result:
    """Drain over each distance in turn with the bare loops."""
    distances, rounds = (QUICK_ROUND_TRIPS, QUICK_ROUNDS) if quick else (ROUND_TRIPS, ROUNDS)
    return Result(tuple([await _row(ms, PROCESSES * SLOTS * trips, rounds) for ms, trips in distances.items()]))


async def _row(ms: float, jobs: int, rounds: int) -> Row:
    ours, bare = list[float](), list[float]()
    for _ in range(rounds):
        ours.append(await _per_second(ms, jobs, is_ours=True))
        bare.append(await _per_second(ms, jobs, is_ours=False))
    what = f"{ms:g} ms of round trip: no-op jobs settled by {PROCESSES} processes"
    return Row(what, median(ours), "/s", median(bare), at_least_ratio(DEMANDED_RATIO), median_ratio(ours, bare))


async def _per_second(ms: float, jobs: int, *, is_ours: bool) -> float:
    async with open_stage() as stage:
        await create_group(stage.client, KEYS)
        url = await stage.far_away(ms)
        reaper = stage.reaper("--groups", KEYS.name)
        await until_held(stage.client, KEYS)
        await wait_until(lambda: stage.client.hexists(KEYS.settings, "policy"), "there are group settings", TIMEOUT_S)
        programs = _workers(stage, url) if is_ours else _loops(stage, url)

        async def all_wait() -> bool:
            return int((await stage.client.info("clients"))["blocked_clients"]) == PROCESSES

        await wait_until(all_wait, f"{PROCESSES} processes wait for jobs", TIMEOUT_S)
        started_ms = await enqueue(stage.client, KEYS.stream, jobs)
        with anyio.fail_after(TIMEOUT_S):
            while not (await progress(stage.client, KEYS)).done:  # noqa: ASYNC110 - nobody tells of a loop's last XACK
                await anyio.sleep(POLL_S)
        ended_ms = await server_ms(stage.client)
        await stopped(reaper, *programs)
    return jobs / (ended_ms - started_ms) * 1000


def _workers(stage: Stage, url: str) -> Sequence[Running]:
    flags = ("--stream", KEYS.stream, "--group", KEYS.group, "--concurrency", str(SLOTS))
    return [stage.worker("worker", *flags, url=url) for _ in range(PROCESSES)]


def _loops(stage: Stage, url: str) -> Sequence[Running]:
    words = (KEYS.stream, KEYS.group)
    return [stage.bare("read-pipelined", *words, f"bare-{number}", SLOTS, url=url) for number in range(PROCESSES)]
