"""The requests of an idle system, and of each of its parts. Default settings.

``MONITOR`` counts every request of our clients after they have settled in. Embedded workers look for stalled and
scheduled jobs by themselves, so no further process runs.
"""

from collections.abc import Awaitable, Callable

import anyio
from redis.asyncio import Redis

from tests.benchmarks.figures import Result, Row, at_most
from tests.benchmarks.holding import report_of, waiting
from tests.benchmarks.stage import Stage, open_stage, stopped
from tests.benchmarks.streams import create_group
from tests.support.processes import Running
from tests.support.waiting import wait_until
from workers.protocol.keys import group_keys
from workers.protocol.messages import RecoveryMode

SECONDS, QUICK_SECONDS = 60.0, 5.0
SETTLING_S = 10.0
"""What is sent in the first seconds belongs to the start: a second look at the group settings, first reports."""
WORKERS = 2
TIMEOUT_S = 120.0
DEMANDED_OF_ALL, DEMANDED_OF_HOLDER, DEMANDED_OF_ONE = 4.0, 2.5, 1.0
HOUR_MS = 3_600_000
KEYS = group_keys("jobs", "billing")

Start = Callable[[Stage], Awaitable[list[Running]]]
"""Starts programs, and waits until they have nothing to do."""


async def measure(*, quick: bool) -> Result:
    """Start them, and count their requests while idle."""
    seconds = QUICK_SECONDS if quick else SECONDS
    found = {
        "two idle workers and a reaper": (await _idle(seconds, _all), at_most(DEMANDED_OF_ALL)),
        "two idle embedded workers": (await _idle(seconds, _embedded), None),
        "a holder of one idle group": (await _idle(seconds, _holder), at_most(DEMANDED_OF_HOLDER)),
        "a replica that waits for the lease": (await _idle(seconds, _waiting), at_most(DEMANDED_OF_ONE)),
        "an idle worker": (await _idle(seconds, _worker), at_most(DEMANDED_OF_ONE)),
    }
    rows = [
        Row(f"{who}: requests to the server", requests / seconds, "/s", demand=demand)
        for who, (requests, demand) in found.items()
    ]
    return Result(tuple(rows))


async def _idle(seconds: float, start: Start) -> int:
    """Count the requests of an idle system."""
    async with open_stage() as stage:
        await create_group(stage.client, KEYS)
        programs = await start(stage)
        requests = await requests_in(stage.client, seconds)
        await stopped(*programs)
    return requests


async def _workers(stage: Stage, mode: RecoveryMode, number: int) -> list[Running]:
    flags = ("--stream", KEYS.stream, "--group", KEYS.group, "--recovery", mode.value)
    programs = [stage.worker("worker", *flags) for _ in range(number)]

    async def all_wait() -> bool:
        return int((await stage.client.info("clients"))["blocked_clients"]) == number

    await wait_until(all_wait, "the workers wait for jobs", TIMEOUT_S)
    return programs


async def _worker(stage: Stage) -> list[Running]:
    return await _workers(stage, RecoveryMode.REAPER, 1)


async def _embedded(stage: Stage) -> list[Running]:
    return await _workers(stage, RecoveryMode.EMBEDDED, WORKERS)


async def _holder(stage: Stage) -> list[Running]:
    reaper = stage.reaper("--groups", KEYS.name)
    await wait_until(lambda: _is_scanned(stage.client), "the holder has scanned the group", TIMEOUT_S)
    return [reaper]


async def _all(stage: Stage) -> list[Running]:
    return await _workers(stage, RecoveryMode.REAPER, WORKERS) + await _holder(stage)


async def _waiting(stage: Stage) -> list[Running]:
    await stage.client.set(KEYS.lease, f"benchmark.0@{HOUR_MS}", px=HOUR_MS)
    reaper = stage.reaper("--groups", KEYS.name)
    await waiting(stage.client, KEYS, 1)
    return [reaper]


async def _is_scanned(client: Redis) -> bool:
    report = await report_of(client, KEYS.name)
    return report is not None and report.last_full_scan_ms > 0


async def requests_in(client: Redis, seconds: float) -> int:
    """Count what anybody sends for ``seconds`` after settling in; scripts' own calls are not requests."""
    sent = 0
    async with client.monitor() as monitor:
        begin = anyio.current_time() + SETTLING_S
        with anyio.move_on_after(SETTLING_S + seconds):
            while True:
                command = await monitor.next_command()
                sent += command["client_type"] != "lua" and anyio.current_time() >= begin
    return sent
