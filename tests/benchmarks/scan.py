"""How fast a replica reads a long pending entries list, and the memory that it needs.

A million deliveries are pending and none is due. A reaper takes over, scans them, arms a timer for each, and scans them
again. The rate is from the start of its term to the end of its first full scan, on the server's clock. Bare: a redis-py
loop over ``xpending_range`` with the same page size, which keeps no entry.
"""

from dataclasses import dataclass
from statistics import median

from redis.asyncio import Redis

from reaper.lease import PAGE
from reaper.replicas import GroupReport
from tests.benchmarks import usage
from tests.benchmarks.figures import Result, Row, at_least_ratio, at_most, median_ratio
from tests.benchmarks.holding import open_journal, report_of, terms_begun
from tests.benchmarks.stage import Stage, open_stage, result_of, stopped
from tests.benchmarks.streams import create_group, strand
from tests.support.processes import Running
from tests.support.waiting import wait_until
from workers.protocol.keys import group_keys

ENTRIES, QUICK_ENTRIES = 1_000_000, 100_000
ROUNDS = 2
KEYS = group_keys("jobs", "billing")
LARGEST_MB = 400.0
TIMEOUT_S = 60.0
FLAGS = (
    "--groups", KEYS.name, "--visibility-timeout", "3600", "--lease-ttl", "2", "--full-scan-interval", "3",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Scanned:
    """One reaper's scans."""

    per_second: float
    peaks_mb: tuple[float, float]
    terms: int


async def measure(*, quick: bool) -> Result:
    """Let reapers and the bare loop scan in turn."""
    entries = QUICK_ENTRIES if quick else ENTRIES
    async with open_stage() as stage:
        await create_group(stage.client, KEYS)
        await strand(stage.client, KEYS, entries)
        ours, bare = [], []
        for _ in range(ROUNDS):
            ours.append(await _reaper_scans(stage, entries))
            bare.append(await result_of(stage.bare("scan", KEYS.stream, KEYS.group, PAGE)))
    return Result(tuple(_rows(entries, ours, bare)))


def _rows(entries: int, ours: list[_Scanned], bare: list[dict[str, float]]) -> list[Row]:
    rates, bare_rates = [one.per_second for one in ours], [one["entries"] / one["seconds"] for one in bare]
    first_peak, second_peak = (max(peaks) for peaks in zip(*(one.peaks_mb for one in ours), strict=True))
    bare_peak = max(one["peak_mb"] for one in bare)
    return [
        Row(
            f"first scan of {entries:,} pending deliveries", median(rates), "/s", median(bare_rates),
            at_least_ratio(0.5), median_ratio(rates, bare_rates),
        ),
        Row("peak memory of the process, first scan", first_peak, "MB", bare_peak, at_most(LARGEST_MB)),
        Row("peak memory of the process, second scan", second_peak, "MB", bare_peak, at_most(LARGEST_MB)),
        Row("terms of one reaper during its scans (lease: 2 s)", max(one.terms for one in ours), demand=at_most(1)),
    ]  # fmt: skip


async def _reaper_scans(stage: Stage, entries: int) -> _Scanned:
    before = await open_journal(stage.client, KEYS)
    reaper = stage.reaper(*FLAGS, program="tests.support.paced")
    first = await _full_scan(stage.client, after_ms=0)
    assert first.timers == entries, f"{first.timers:,} timers are armed, {entries:,} deliveries are pending"
    peaks = usage.peak_mb(reaper.pid), await _peak_of_second_scan(stage.client, reaper, first)
    terms = await terms_begun(stage.client, KEYS, before)
    await stopped(reaper)
    return _Scanned(entries / (first.last_full_scan_ms - terms[0].at_ms) * 1000, peaks, len(terms))


async def _peak_of_second_scan(client: Redis, reaper: Running, first: GroupReport) -> float:
    usage.forget_peak(reaper.pid)
    await _full_scan(client, after_ms=first.last_full_scan_ms)
    return usage.peak_mb(reaper.pid)


async def _full_scan(client: Redis, after_ms: int) -> GroupReport:
    """Wait for the end of the first full scan after ``after_ms``."""

    async def scanned() -> GroupReport | None:
        report = await report_of(client, KEYS.name)
        return report if report and report.last_full_scan_ms > after_ms else None

    report = await wait_until(scanned, "a full scan has ended", TIMEOUT_S)
    assert report
    return report
