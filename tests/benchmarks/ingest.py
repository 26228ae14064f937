"""How fast the pipeline brings a journal into the lake, and how soon an event is there.

Journal to Parquet. A journal has a million `acked` events. In the first case each entry has one event, and in the
second case 32. The code of `reaper pipeline ingest --available-now` reads them and writes them into a new lake, in a
warm session of local[2]. The rate is from the call to its end, with the planning and the start of the query.

Event to lake. The ingester runs with a trigger of one second, events are added at a steady rate, and a reader without
Spark looks for new batches. The time of each event is from its ID (the server's clock, here the same one) to the moment
when its file can be read.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from reaper.pipeline.lake.ingest import ingest
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.supervisor import Progress, Run
from reaper.pipeline.lake.tables import lake_at
from reaper.pipeline.settings import PipelineSettings
from reaper.pipeline.spark.session import build_session
from tests.benchmarks.figures import Demand, Result, Row, at_most, percentile
from tests.benchmarks.stage import Stage, open_stage
from tests.support.waiting import wait_until

EVENTS, QUICK_EVENTS = 1_000_000, 50_000
ROUNDS = 3
JOURNAL = "{orders}:journal"
LEAST_PER_SECOND, LEAST_OF_MANY_PER_SECOND = 150_000, 400_000
MOST_SECONDS = 2.0
RATE = 200
LATENCY_S, QUICK_LATENCY_S = 30.0, 5.0
ACKS_IN_AN_ENTRY = 32
FILL_AT_ONCE = 5_000
LOOK_EVERY_S = 0.005
TIMEOUT_S = 120.0


async def measure(*, quick: bool) -> Result:
    """Ingest a full journal several times, then a growing one once."""
    session = build_session("local[2]", heap="2g")
    events = QUICK_EVENTS if quick else EVENTS
    async with open_stage() as stage:
        await _fill(stage, events)
        runs = [await _ingest_all(stage, session, number) for number in range(ROUNDS + 1)]
        warm = [events / seconds for seconds in runs[1:]]
        await stage.client.delete(JOURNAL)
        await _fill_with_many(stage, events)
        of_many = [events / await _ingest_all(stage, session, ROUNDS + 1 + number) for number in range(ROUNDS + 1)][1:]
        await stage.client.delete(JOURNAL)
        late = await _latencies(stage, session, QUICK_LATENCY_S if quick else LATENCY_S)
    return Result(
        (
            Row(
                f"journal → Parquet, {events:,} events, warm",
                median(warm),
                "/s",
                demand=Demand("at least", LEAST_PER_SECOND),
            ),
            Row("the same, cold", events / runs[0], "/s"),
            Row(
                f"the same, {ACKS_IN_AN_ENTRY} in an entry, warm",
                median(of_many),
                "/s",
                demand=Demand("at least", LEAST_OF_MANY_PER_SECOND),
            ),
            Row("event → lake, trigger 1 s, p50", percentile(late, 0.5), "s"),
            Row("event → lake, trigger 1 s, p95", percentile(late, 0.95), "s", demand=at_most(MOST_SECONDS)),
            Row("event → lake, trigger 1 s, max", max(late), "s"),
        )
    )


async def _fill(stage: Stage, events: int) -> None:
    for first in range(0, events, FILL_AT_ONCE):
        pipeline = stage.client.pipeline(transaction=False)
        for job in range(first, min(events, first + FILL_AT_ONCE)):
            pipeline.xadd(JOURNAL, _event(job))
        await pipeline.execute()


async def _fill_with_many(stage: Stage, events: int) -> None:
    entries = range(0, events, ACKS_IN_AN_ENTRY)
    for first in range(0, len(entries), FILL_AT_ONCE):
        pipeline = stage.client.pipeline(transaction=False)
        for job in entries[first : first + FILL_AT_ONCE]:
            pipeline.xadd(JOURNAL, _events(range(job, min(events, job + ACKS_IN_AN_ENTRY))))
        await pipeline.execute()


def _events(jobs: range) -> dict[Any, Any]:
    """Return what a worker journals for jobs that went well together."""
    return {
        "event": "acked",
        "group": "billing",
        "consumer": "host~0123456789ab",
        "entry": ",".join(f"{1_700_000_000_000 + job}-0" for job in jobs),
        "mode": "reaper",
        "delivery": 1,
        "generation": 0,
        "ready_ms": ",".join(str(1_700_000_000_000 + job) for job in jobs),
        "delivered_ms": 1_700_000_000_005 + jobs[-1],
        "run_ms": ",".join(str(job % 5_000) for job in jobs),
    }


def _event(job: int) -> dict[Any, Any]:
    """Return what a worker journals for a job that went well."""
    at = 1_700_000_000_000 + job
    data = {
        "group": "billing",
        "entry": f"{at}-0",
        "consumer": "host~0123456789ab",
        "delivery": 1,
        "generation": 0,
        "enqueued_ms": at,
        "delivered_ms": at + 5,
        "ready_ms": 0,
        "run_ms": job % 5_000,
    }
    return {"event": "acked", **data}


def _settings(stage: Stage, trigger: timedelta) -> PipelineSettings:
    return PipelineSettings(redis_url=stage.server.url, trigger=trigger)


async def _ingest_all(stage: Stage, session: SparkSession, number: int) -> float:
    """Ingest all events into a new lake. Return the seconds that it took."""
    layout = lake_at(stage.folder / f"lake-{number}")
    settings, run = _settings(stage, timedelta(seconds=1)), Run(available_now=True)
    started = time.perf_counter()
    await anyio.to_thread.run_sync(partial(ingest, settings, layout, lambda: session, run))
    return time.perf_counter() - started


async def _latencies(stage: Stage, session: SparkSession, seconds: float) -> list[float]:
    """Add events at a steady rate. Return the seconds from the addition of each one until it could be read."""
    layout = lake_at(stage.folder / "live")
    await _fill(stage, 1)
    seen: dict[str, float] = {}
    address = layout.table("events")
    with _ingesting(stage, session, layout):
        await wait_until(lambda: DeltaTable.is_deltatable(address), "the lake is there", TIMEOUT_S)
        table, known = DeltaTable(address), set[str]()
        await wait_until(lambda: _look(table, known, seen), "the ingester is at work", TIMEOUT_S)
        begin = time.time()
        added = 0
        while time.time() < begin + seconds or len(seen) <= added:
            if time.time() < begin + seconds:
                while added < (time.time() - begin) * RATE:
                    await stage.client.xadd(JOURNAL, _event(added))
                    added += 1
            await anyio.to_thread.run_sync(_look, table, known, seen)
            await anyio.sleep(LOOK_EVERY_S)
    return [at - int(entry.split("-")[0]) / 1000 for entry, at in list(seen.items())[1:]]


def _look(table: DeltaTable, known: set[str], seen: dict[str, float]) -> bool:
    """Read the files that are new, and note when each of their entries could be read.

    One handle serves all looks, because opening the table anew each time would take the ingester's cores from it.
    """
    table.update_incremental()
    for file in set(table.file_uris()) - known:
        entries = _ids(Path(file))
        now = time.time()
        for entry in entries:
            seen.setdefault(entry, now)  # files are joined, now and then
        known.add(file)
    return bool(seen)


def _ids(file: Path) -> list[str]:
    ids: list[str] = pq.ParquetFile(file).read(columns=["id"]).column("id").to_pylist()
    return ids


@contextmanager
def _ingesting(stage: Stage, session: SparkSession, layout: Layout) -> Iterator[None]:
    stop = threading.Event()
    run = Run(stop=stop)
    found: list[Progress] = []
    settings = _settings(stage, timedelta(seconds=1))
    thread = threading.Thread(target=lambda: found.append(ingest(settings, layout, lambda: session, run)))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
