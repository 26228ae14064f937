"""The speed of a replica that makes a mass of stalled deliveries ready, and its effect on other clients.

All deliveries are overdue when a replica takes the lease. Time runs from the start of its term until the last copy is
ready, on the server's clock. It includes scan, timers and journal. The bare loop is a script that copies, acknowledges
and deletes ID by ID. A bystander's PING shows how long the server answers no other client. The server time of calls
includes waiting on a busy machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import anyio
from redis.asyncio import Redis

from reaper.recovery.source_watch import RECOVER_BATCH
from tests.benchmarks import server_load, usage
from tests.benchmarks.bystander import with_unsent
from tests.benchmarks.figures import (
    Result,
    Row,
    Spread,
    at_least_ratio,
    at_most,
    median_ratio,
    spread,
)
from tests.benchmarks.holding import begun_after, held_lease, waiting
from tests.benchmarks.stage import Stage, open_stage, result_of, stopped
from tests.benchmarks.streams import Progress, create_group, progress, strand
from tests.support.processes import Running
from tests.support.waiting import wait_until
from workers.protocol.keys import GroupKeys, group_keys

SIZES = {1_000: 3, 10_000: 3, 100_000: 3}
"""Stranded deliveries, and how often they are recovered."""
QUICK_SIZES = {1_000: 2, 10_000: 2}
BATCH = RECOVER_BATCH
VISIBILITY_S = 0.5
OURS, SCRIPT = (group_keys(stream, "billing") for stream in ("jobs", "bare"))
FLAGS = ("--groups", OURS.name, "--visibility-timeout", str(VISIBILITY_S))
TIMEOUT_S = 60.0

GROWTH = 1.2
"""What an entry among ten times as many may cost more."""
LONGEST_CALL_MS = 5.0


@dataclass(frozen=True, slots=True)
class _Recovery:
    """One mass recovery, by whomever."""

    entries: int
    seconds: float
    server_us: float
    """CPU time of the server."""
    client_us: float
    """CPU time of the process that recovers."""
    pings: Spread
    call_ms: Mapping[str, float]
    """Server time of script calls."""

    @property
    def per_second(self) -> float:
        return self.entries / self.seconds

    @property
    def us_an_entry(self) -> float:
        return self.seconds / self.entries * 1_000_000


class _Round(NamedTuple):
    ours: _Recovery
    bare: _Recovery


async def measure(*, quick: bool) -> Result:
    """Recover in turn with the bare loop, for each number of deliveries."""
    sizes = QUICK_SIZES if quick else SIZES
    rounds = {size: [await _round(size) for _ in range(times)] for size, times in sizes.items()}
    largest = max(sizes)
    rows = [_rate_row(size, rounds[size]) for size in sizes]
    rows += [_growth_row(size, rounds[size], rounds[largest]) for size in sizes if size < largest]
    rows += [*_cpu_rows(rounds[largest]), *_bystander_rows(largest, rounds[largest])]
    return Result(tuple(rows))


async def _round(size: int) -> _Round:
    async with open_stage() as stage:
        ours = await _reaper_recovers(stage, size)
        return _Round(ours, await _script_recovers(stage, size))


# ---- measuring


async def _reaper_recovers(stage: Stage, size: int) -> _Recovery:
    bystander = await _stranded(stage, OURS, size)
    async with held_lease(stage.client, OURS) as held:
        reaper = stage.reaper(*FLAGS)
        await waiting(stage.client, OURS, 1)
        server_us, reaper_us = await server_load.cpu_us(stage.client), usage.cpu_us(reaper.pid)
    begun = await begun_after(stage.client, OURS, held)
    ended_ms = await _all_ready(stage.client, OURS, size)
    server_us = await server_load.cpu_us(stage.client) - server_us
    reaper_us = usage.cpu_us(reaper.pid) - reaper_us
    call_ms = await server_load.script_call_ms(stage.client)
    await stopped(reaper)
    pings = await _pings(bystander, begun.at_ms, ended_ms)
    return _Recovery(size, max(1, ended_ms - begun.at_ms) / 1000, server_us, reaper_us, pings, call_ms)


async def _script_recovers(stage: Stage, size: int) -> _Recovery:
    bystander = await _stranded(stage, SCRIPT, size)
    found = await result_of(stage.bare("recover", SCRIPT.stream, SCRIPT.group, BATCH))
    call_ms = await server_load.script_call_ms(stage.client)
    pings = await _pings(bystander, found["from"] * 1000, found["to"] * 1000)
    return _Recovery(size, found["seconds"], found["server_us"], found["client_us"], pings, call_ms)


async def _stranded(stage: Stage, keys: GroupKeys, size: int) -> Running:
    """Leave deliveries behind until they are overdue, and return a bystander that watches the server."""
    await create_group(stage.client, keys)
    await strand(stage.client, keys, size)
    bystander = stage.bystander()
    await bystander.prints("watching")
    await anyio.sleep(VISIBILITY_S)  # this is no wait for an event, because deliveries become overdue by time
    await server_load.reset(stage.client)
    return bystander


async def _all_ready(client: Redis, keys: GroupKeys, size: int) -> int:
    """Wait until all jobs are ready again. Return when the last copy was added, in ms of the server's clock."""

    async def none_pending() -> Progress | None:
        now = await progress(client, keys)
        return None if now.pending else now

    end = await wait_until(none_pending, f"{size:,} deliveries are ready again", TIMEOUT_S)
    assert end
    ready = await client.xlen(keys.stream)
    assert ready == size, f"{size:,} deliveries were stranded, {ready:,} are ready"
    return end.last_entry_ms


async def _pings(bystander: Running, from_ms: float, to_ms: float) -> Spread:
    bystander.terminate()
    samples = with_unsent(await result_of(bystander))
    return spread([took for sent_at, took in samples if from_ms - 1 <= sent_at <= to_ms] or [0.0])


# ---- telling


def _rate_row(size: int, rounds: Sequence[_Round]) -> Row:
    ours, bare = [one.ours.per_second for one in rounds], [one.bare.per_second for one in rounds]
    demand = at_least_ratio(0.5) if size == max(SIZES) else None
    what = f"{size:,} stranded deliveries made ready"
    return Row(what, median(ours), "/s", median(bare), demand, median_ratio(ours, bare))


def _growth_row(size: int, fewer: Sequence[_Round], most: Sequence[_Round]) -> Row:
    def growth(of: Callable[[_Round], _Recovery]) -> float:
        return median(of(one).us_an_entry for one in most) / median(of(one).us_an_entry for one in fewer)

    what = f"cost of an entry among {most[0].ours.entries:,}, in times of one among {size:,}"
    ours, bare = growth(lambda one: one.ours), growth(lambda one: one.bare)
    return Row(what, ours, "", bare, at_most(GROWTH))


def _cpu_rows(rounds: Sequence[_Round]) -> list[Row]:
    def row(what: str, of: Callable[[_Recovery], float]) -> Row:
        ours, bare = (
            [of(one.ours) / one.ours.entries for one in rounds],
            [of(one.bare) / one.bare.entries for one in rounds],
        )
        return Row(what, median(ours), "µs", median(bare), ratio_of_pairs=median_ratio(ours, bare))

    return [
        row("CPU time of the server, an entry", lambda one: one.server_us),
        row("CPU time of the replica, an entry", lambda one: one.client_us),
    ]


def _bystander_rows(size: int, rounds: Sequence[_Round]) -> list[Row]:
    """The worst of all rounds, because one call without an answer is enough."""
    ours, bare = [one.ours for one in rounds], [one.bare for one in rounds]

    def ping(part: int) -> tuple[float, float]:
        return max(one.pings[part] for one in ours), max(one.pings[part] for one in bare)

    def call(part: str) -> tuple[float, float]:
        return max(one.call_ms[part] for one in ours), max(one.call_ms[part] for one in bare)

    rows = [
        Row(f"a bystander's PING meanwhile ({size:,}), p50", *_with_unit(ping(0))),
        Row(f"a bystander's PING meanwhile ({size:,}), p99", *_with_unit(ping(1)), at_most(LONGEST_CALL_MS)),
        Row(f"a bystander's PING meanwhile ({size:,}), max", *_with_unit(ping(2))),
        Row("server time of a script call, mean", *_with_unit(call("mean"))),
    ]
    if "p99" in ours[0].call_ms:
        rows.append(Row("server time of a script call, p99", *_with_unit(call("p99"))))
    return [*rows, Row("server time of a script call, max", *_with_unit(call("max")), at_most(LONGEST_CALL_MS))]


def _with_unit(numbers: tuple[float, float]) -> tuple[float, str, float]:
    return numbers[0], "ms", numbers[1]
