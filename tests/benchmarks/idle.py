"""What a system asks of the server that has nothing to do: two workers and one reaper, default settings.

Every request is counted that a client of ours sends (``MONITOR``), once all have settled in.
"""

from collections import Counter

import anyio
from redis.asyncio import Redis

from tests.benchmarks.figures import Breakdown, Result, Row, at_most
from tests.benchmarks.leadership import report_of
from tests.benchmarks.stage import open_stage, stopped
from tests.benchmarks.streams import create_group
from tests.support.waiting import wait_until
from workers.protocol.keys import group_keys

SECONDS, QUICK_SECONDS = 15.0, 5.0
WORKERS = 2
TIMEOUT_S = 30.0
DEMANDED = 4.0
KEYS = group_keys("jobs", "billing")


async def measure(*, quick: bool) -> Result:
    """Start them, and count what they send while nothing happens."""
    seconds = QUICK_SECONDS if quick else SECONDS
    async with open_stage() as stage:
        await create_group(stage.client, KEYS)
        reaper = stage.reaper("--groups", KEYS.pair)
        flags = ("--stream", KEYS.stream, "--group", KEYS.group)
        workers = [stage.worker("worker", *flags) for _ in range(WORKERS)]
        await _settled_in(stage.client)
        requests = await _requests(stage.client, seconds)
        await stopped(reaper, *workers)
    rate = sum(requests.values()) / seconds
    row = Row("two idle workers and a reaper: requests to the server", rate, "/s", demand=at_most(DEMANDED))
    return Result((row,), (_by_command(requests, seconds),))


async def _settled_in(client: Redis) -> None:
    async def ready() -> bool:
        waiting = int((await client.info("clients"))["blocked_clients"])
        report = await report_of(client, KEYS.pair)
        return waiting == WORKERS and report is not None and report.last_full_scan_ms > 0

    await wait_until(ready, "the workers wait for jobs and the reaper has scanned", TIMEOUT_S)


async def _requests(client: Redis, seconds: float) -> "Counter[str]":
    """Count what anybody sends for ``seconds``, by command; scripts' own calls are not requests."""
    sent: Counter[str] = Counter()
    async with client.monitor() as monitor:
        with anyio.move_on_after(seconds):
            while True:
                command = await monitor.next_command()
                if command["client_type"] != "lua":
                    sent[command["command"].partition(" ")[0].upper()] += 1
    return sent


def _by_command(requests: "Counter[str]", seconds: float) -> Breakdown:
    parts = tuple((name, f"{count / seconds:.2f}/s") for name, count in requests.most_common())
    return Breakdown("Requests of two idle workers and a reaper", parts)
