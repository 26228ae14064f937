"""The time without a holder of the lease.

Three replicas have a lease of 3 s. One delivery is pending and not due for an hour. Then its idle time is set so that
it is overdue, and the holder is ended at once. The old holder does not know, so only the next one can make the job
ready. Time runs from the signal to the ID of the copy, on the server's clock. The signals come at all phases between
two ticks. The bare value is the rest of the lease at the kill. Replicas that trust leases cannot be faster.
"""

from collections.abc import Callable
from typing import NamedTuple

import anyio
from redis.asyncio import Redis

from tests.benchmarks.figures import Result, Row, Spread, at_most, spread
from tests.benchmarks.holding import begun_after, holder_among, open_journal, replicas, report_of
from tests.benchmarks.stage import Stage, open_stage
from tests.benchmarks.streams import create_group, deliver, delivered_at, enqueue, progress, server_ms
from tests.support.processes import Running
from tests.support.waiting import wait_until
from workers.protocol.keys import group_keys
from workers.protocol.messages import entry_ms

REPLICAS = 3
ROUNDS, QUICK_ROUNDS = 7, 2
TTL_S, TICK_S = 3.0, 0.9
KEYS = group_keys("jobs", "billing")
FLAGS = (
    "--groups", KEYS.name, "--visibility-timeout", "3600", "--lease-ttl", str(TTL_S),
    "--full-scan-interval", "3600", "--max-deliveries", "1000",
)  # fmt: skip
AFTER_KILL_MS, AFTER_TERM_MS = TTL_S * 1000 + 500, 300.0
"""What is demanded."""
IDLE_MS = 7_200_000
SCANNED_MS = 50
"""The holder tells the time of its scans by a clock that may be off by a little."""
TIMEOUT_S = 60.0


class _Failover(NamedTuple):
    """One change of holders. Times in ms."""

    taken: float
    acted: float
    lease_left: float


async def measure(*, quick: bool) -> Result:
    """End holders, one after the other."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    phases = [turn / rounds * TICK_S for turn in range(rounds)]
    async with open_stage() as stage:
        await create_group(stage.client, KEYS)
        await enqueue(stage.client, KEYS.stream, 1)
        replicas = _Replicas(stage)
        killed = [await _fail_over(replicas, Running.kill, phase) for phase in phases]
        ended = [await _fail_over(replicas, Running.terminate, phase) for phase in phases]
    return Result((*_rows("kill -9", killed, AFTER_KILL_MS), *_rows("SIGTERM", ended, AFTER_TERM_MS)))


def _rows(how: str, failovers: list[_Failover], demanded_ms: float) -> list[Row]:
    taken, acted, left = (spread(times) for times in zip(*failovers, strict=True))
    what = f"{how} of the holder: another one"
    wait = left if how == "kill -9" else None
    return [
        Row(f"{what} takes the lease, {name}", getattr(taken, name), "ms", wait and getattr(wait, name))
        for name in ("p50", "max")
    ] + [
        Row(f"{what} acts, {name}", getattr(acted, name), "ms", wait and getattr(wait, name), at_most(demanded_ms))
        for name in Spread._fields
    ]


class _Replicas:
    """Three replicas. A replica that ends is replaced."""

    def __init__(self, stage: Stage) -> None:
        self.client = stage.client
        self._stage = stage
        self._running: list[Running] = []

    async def holder(self) -> Running:
        """Wait until all take part, and return the holder of the lease."""
        self._running = [reaper for reaper in self._running if reaper.running]
        missing = REPLICAS - len(self._running)
        self._running += [self._stage.reaper(*FLAGS, program="tests.support.paced") for _ in range(missing)]
        process_ids = {reaper.pid for reaper in self._running}

        async def registered() -> bool:
            return process_ids <= {replica.pid for replica in await replicas(self.client)}

        await wait_until(registered, f"{REPLICAS} replicas are registered", TIMEOUT_S)
        return await holder_among(self.client, KEYS, self._running)


async def _fail_over(group: _Replicas, end: Callable[[Running], None], phase_s: float) -> _Failover:
    client = group.client
    await group.holder()
    entry_id = await _watched_delivery(client)
    before = await open_journal(client, KEYS)
    await _tick(client)
    await anyio.sleep(phase_s)
    holder = await group.holder()

    await client.execute_command("XCLAIM", KEYS.stream, KEYS.group, "gone", 0, entry_id, "IDLE", IDLE_MS, "JUSTID")
    left_ms = await client.pttl(KEYS.lease)
    ended_ms = await server_ms(client)
    end(holder)

    taken = await begun_after(client, KEYS, before)
    copy_ms = await _copied(client, entry_id)
    await holder.wait()
    return _Failover(taken.at_ms - ended_ms, copy_ms - ended_ms, left_ms)


async def _watched_delivery(client: Redis) -> bytes:
    """Deliver the job once more, and wait until the holder has a timer for it."""
    await deliver(client, KEYS, 1)
    ((entry_id, delivered_ms),) = (await delivered_at(client, KEYS, 2)).items()

    async def watched() -> bool:
        report = await report_of(client, KEYS.name)
        return report is not None and report.timers == 1 and report.last_scan_ms > delivered_ms + SCANNED_MS

    await wait_until(watched, "the holder has scanned the delivery", TIMEOUT_S)
    return entry_id


async def _tick(client: Redis) -> None:
    """Wait until the holder extends its lease."""

    async def just_extended() -> bool:
        return int(await client.pttl(KEYS.lease)) > TTL_S * 1000 - 60

    await wait_until(just_extended, "the lease is extended", TIMEOUT_S)


async def _copied(client: Redis, entry_id: bytes) -> int:
    """Wait until the job is ready again. Return its time in ms of the server's clock."""

    async def ready() -> int:
        now = await progress(client, KEYS)
        return now.last_entry_ms if not now.pending and now.last_entry_ms > entry_ms(entry_id) else 0

    return await wait_until(ready, "the next holder has made the job ready", TIMEOUT_S)
