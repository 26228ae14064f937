"""What a system asks of the server that has nothing to do: two workers, with and without a reaper, default settings.

Every request is counted that a client of ours sends (``MONITOR``), once all have settled in. Embedded, the workers look
for what stalls and for what is scheduled by themselves: what that buys is that there is no further program to run, and
that any one worker is enough to recover what others have left. What it costs is seen where a crash is recovered from.
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
from workers.protocol.messages import RecoveryMode

SECONDS, QUICK_SECONDS = 30.0, 5.0
SETTLING_S = 10.0
"""What is sent in the first seconds belongs to the start: a second look at what was agreed on, first reports."""
WORKERS = 2
TIMEOUT_S = 30.0
DEMANDED = 3.0
KEYS = group_keys("jobs", "billing")


async def measure(*, quick: bool) -> Result:
    """Start them, and count what they send while nothing happens."""
    seconds = QUICK_SECONDS if quick else SECONDS
    found = {
        "two idle workers and a reaper": (await _idle(seconds, RecoveryMode.REAPER), at_most(DEMANDED)),
        "two idle embedded workers": (await _idle(seconds, RecoveryMode.EMBEDDED), None),
    }
    rows = [
        Row(f"{who}: requests to the server", sum(requests.values()) / seconds, "/s", demand=demand)
        for who, (requests, demand) in found.items()
    ]
    return Result(tuple(rows), tuple(_by_command(who, requests, seconds) for who, (requests, _) in found.items()))


async def _idle(seconds: float, mode: RecoveryMode) -> "Counter[str]":
    """Count what is sent while nothing happens."""
    async with open_stage() as stage:
        await create_group(stage.client, KEYS)
        flags = ("--stream", KEYS.stream, "--group", KEYS.group, "--recovery", mode.value)
        programs = [stage.worker("worker", *flags) for _ in range(WORKERS)]
        await wait_until(lambda: _all_wait(stage.client), "the workers wait for jobs", TIMEOUT_S)
        if mode is RecoveryMode.REAPER:
            programs.append(stage.reaper("--groups", KEYS.pair))
            await wait_until(lambda: _has_scanned(stage.client), "the reaper has scanned", TIMEOUT_S)
        requests = await _requests(stage.client, seconds)
        await stopped(*programs)
    return requests


async def _all_wait(client: Redis) -> bool:
    return int((await client.info("clients"))["blocked_clients"]) == WORKERS


async def _has_scanned(client: Redis) -> bool:
    report = await report_of(client, KEYS.pair)
    return report is not None and report.last_full_scan_ms > 0


async def _requests(client: Redis, seconds: float) -> "Counter[str]":
    """Count what anybody sends for ``seconds`` after settling in, by command; scripts' own calls are not requests."""
    sent: Counter[str] = Counter()
    async with client.monitor() as monitor:
        begin = anyio.current_time() + SETTLING_S
        with anyio.move_on_after(SETTLING_S + seconds):
            while True:
                command = await monitor.next_command()
                if command["client_type"] != "lua" and anyio.current_time() >= begin:
                    sent[command["command"].partition(" ")[0].upper()] += 1
    return sent


def _by_command(who: str, requests: "Counter[str]", seconds: float) -> Breakdown:
    parts = tuple((name, f"{count / seconds:.2f}/s") for name, count in requests.most_common())
    return Breakdown(f"Requests of {who}", parts)
