"""One replica for many groups, far away from its Redis, on a busy machine.

The reaper runs with default settings, all groups are idle, and beside it two processes use the CPU. A lease
that is taken twice was not extended in time although Redis was there. Then the group is taken over again.
"""

import anyio
from redis.asyncio import Redis

from tests.benchmarks.figures import Result, Row, at_most
from tests.benchmarks.holding import replicas
from tests.benchmarks.idle import requests_in
from tests.benchmarks.stage import open_stage, stopped
from tests.support.waiting import wait_until
from workers.protocol.keys import group_keys

GROUPS, QUICK_GROUPS = 1_000, 200
ROUND_TRIP_MS = 50
BUSY_LOOPS = 2
SECONDS, QUICK_SECONDS = 300.0, 30.0
READY_S = 180.0
COUNTED_S = 30.0


async def measure(*, quick: bool) -> Result:
    """Let it serve for minutes, and count its terms."""
    groups, seconds = (QUICK_GROUPS, QUICK_SECONDS) if quick else (GROUPS, SECONDS)
    all_keys = [group_keys(f"jobs-{number}", "billing") for number in range(groups)]
    async with open_stage() as stage:
        for keys in all_keys:
            await stage.client.xgroup_create(keys.stream, keys.group, "0", mkstream=True)
        busy = [stage.busy_loop() for _ in range(BUSY_LOOPS)]
        far = await stage.far_away(ROUND_TRIP_MS)
        began = anyio.current_time()
        reaper = stage.reaper("--groups", ",".join(keys.name for keys in all_keys), url=far)
        await wait_until(lambda: _held(stage.client, groups), "every group is held", READY_S)
        ready_s = anyio.current_time() - began
        await anyio.sleep(seconds)
        (replica,) = await replicas(stage.client)
        problems = sum(sum(counts.problems.values()) for counts in replica.patterns.values())
        requests = await requests_in(stage.client, COUNTED_S)
        await stopped(reaper)
        for loop in busy:
            loop.kill()
    what = f"{groups} groups, {ROUND_TRIP_MS} ms away, beside {BUSY_LOOPS} busy loops"
    return Result(
        (
            Row(f"{what}: leases lost in {seconds:.0f} s", replica.terms - groups, "", demand=at_most(0)),
            Row(f"{what}: start to every group held", ready_s, "s"),
            Row(f"{what}: problems of groups at the end", problems, ""),
            Row(f"{what}: requests to the server, a group", requests / COUNTED_S / groups, "/s"),
        )
    )


async def _held(client: Redis, groups: int) -> bool:
    return any(one.held == groups for one in await replicas(client))
