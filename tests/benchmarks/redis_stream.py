"""Reading streams into Spark, and writing tables to streams.

A stream of a journal's entries (three fields) is read by `redis-stream` into Spark's noop sink, once as one partition
and once as two, in turn with two loops in redis-py: ``xrange()`` as users write it, and ``XRANGE`` whose replies are
left as they come. Then a cached table of as many rows is appended to a stream, in turn with a loop of ``xadd()`` in
pipelines. Embedded Spark with two cores, warm.
"""

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import anyio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from reaper.pipeline.redis_stream import register
from reaper.pipeline.redis_stream.columns import Layout
from reaper.pipeline.redis_stream.link import Link
from reaper.pipeline.redis_stream.ranges import RangeReader
from reaper.pipeline.redis_stream.source import BatchReader, RedisStreamSource
from reaper.pipeline.spark.session import spark_session
from tests.benchmarks import plain_loops, server_load
from tests.benchmarks.figures import Breakdown, Result, Row, at_least_ratio, at_most, median_ratio
from tests.benchmarks.stage import Stage, open_stage

ENTRIES, QUICK_ENTRIES = 1_000_000, 50_000
WRITTEN, QUICK_WRITTEN = 400_000, 20_000
ROUNDS, QUICK_ROUNDS = 5, 1
STREAM, SHORT, COPY = "{jobs}:journal", "short", "copy"
COLUMNS = StructType().add("id", "string").add("event", "string").add("job", "string").add("data", "string")
ROOT = Path(__file__).resolve().parents[2]


async def measure(*, quick: bool) -> Result:
    """Read and write in turn with the loops."""
    entries, written, rounds = (QUICK_ENTRIES, QUICK_WRITTEN, QUICK_ROUNDS) if quick else (ENTRIES, WRITTEN, ROUNDS)
    async with open_stage() as stage:
        await _loop(stage, "pipeline", STREAM, entries)
        with spark_session("local[2]") as spark:
            register(spark)
            reading = await _read(stage, spark, entries, rounds)
            start_s = await _start(stage, spark, rounds)
            writing = await _write(stage, spark, written, rounds)
        profile = _profile(stage, entries, reading[0].ours, start_s)
    return Result((*reading, *writing), (profile,))


def _options(stage: Stage, stream: str, partitions: int = 1) -> dict[str, str]:
    return {"url": stage.server.url, "stream": stream, "partitions": str(partitions)}


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


async def _loop(stage: Stage, command: str, stream: str, entries: int) -> float:
    """Run one of `plain_loops`; return the seconds it took."""
    words = [sys.executable, "-m", plain_loops.__name__, command, stage.server.url, stream, str(entries)]
    return float((await anyio.run_process(words, cwd=ROOT)).stdout)


# ---- reading


async def _read(stage: Stage, spark: SparkSession, entries: int, rounds: int) -> list[Row]:
    def read(partitions: int) -> float:
        return _query(spark, _options(stage, STREAM, partitions))

    read(1), read(2)  # starts the workers
    await server_load.reset(stage.client)
    read(1)
    page_us = (await server_load.commands(stage.client))["xrange"].mean_us
    one, two, plain, raw = [], [], [], []
    for _ in range(rounds):
        plain.append(entries / await _loop(stage, "xrange", STREAM, entries))
        one.append(entries / read(1))
        raw.append(entries / await _loop(stage, "raw_xrange", STREAM, entries))
        two.append(entries / read(2))
    what = f"{entries:,} entries into Spark"
    return [
        _row(f"{what}, 1 partition; bare: redis-py's xrange()", one, plain, 1.0),
        _row(f"{what}, 1 partition; bare: raw XRANGE", one, raw, 0.75),
        _row(f"{what}, 2 partitions; bare: ours with 1", two, one, 1.2),
        Row(f"{what}: Redis's time for an XRANGE", page_us / 1000, "ms", demand=at_most(1.0)),
    ]


async def _start(stage: Stage, spark: SparkSession, rounds: int) -> float:
    """Return the seconds that a query of one entry takes."""
    await stage.client.xadd(SHORT, {"event": "acked"})
    return median(_query(spark, _options(stage, SHORT)) for _ in range(rounds))


def _query(spark: SparkSession, options: dict[str, str]) -> float:
    source = spark.read.format("redis-stream").options(**options)
    return _seconds(lambda: _consume(source.schema(COLUMNS).load()))


def _consume(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def _row(what: str, ours: list[float], bare: list[float], demanded: float) -> Row:
    return Row(what, median(ours), "/s", median(bare), at_least_ratio(demanded), median_ratio(ours, bare))


# ---- writing


async def _write(stage: Stage, spark: SparkSession, entries: int, rounds: int) -> list[Row]:
    data = plain_loops.DATA.decode()
    table = spark.range(0, entries, 1, 2).selectExpr(
        "'acked' AS event", "concat('job-', id) AS job", f"'{data}' AS data"
    )
    tables = [table.coalesce(1).cache(), table.cache()]
    for cached in tables:
        _consume(cached)

    async def write(cached: DataFrame) -> float:
        await stage.client.delete(COPY)
        writer = cached.write.format("redis-stream").options(**_options(stage, COPY)).mode("append")
        seconds = _seconds(writer.save)
        added = await stage.client.xlen(COPY)
        if added != entries:
            raise RuntimeError(f"{added:,} entries were added instead of {entries:,}")
        return entries / seconds

    async def write_plainly() -> float:
        await stage.client.delete(COPY)
        return entries / await _loop(stage, "pipeline", COPY, entries)

    await write(tables[0])
    one, two, plain = [], [], []
    for _ in range(rounds):
        plain.append(await write_plainly())
        one.append(await write(tables[0]))
        two.append(await write(tables[1]))
    what = f"{entries:,} rows to a stream"
    return [
        _row(f"{what}, 1 partition; bare: redis-py's pipeline", one, plain, 0.8),
        Row(
            f"{what}, 2 partitions; bare: redis-py's pipeline",
            median(two),
            "/s",
            median(plain),
            None,
            median_ratio(two, plain),
        ),
    ]


# ---- where the time goes


def _profile(stage: Stage, entries: int, in_spark: float, start_s: float) -> Breakdown:
    """Split the CPU time of one partition's Python by leaving steps out, in this process and without Spark.

    CPU time, since columns are made while Redis works on the next page.
    """
    source = RedisStreamSource(_options(stage, STREAM))
    part = BatchReader(source.parsed, COLUMNS).partitions()[0]
    layout = Layout(COLUMNS, source.parsed)

    def pages() -> RangeReader:
        return RangeReader(Link(stage.server.url, 10), part, source.parsed)  # type: ignore[arg-type]

    def read_only() -> None:
        for _ in pages().pages():
            pass

    def convert() -> None:
        for page in pages().pages():
            layout.columns(STREAM, page)

    gc.collect()
    gc.disable()
    try:
        reading, converting = _cpu_seconds(read_only), _cpu_seconds(convert)
    finally:
        gc.enable()
    parts = (
        ("CPU time of asking for pages and parsing them", reading),
        ("CPU time of making Arrow columns", converting - reading),
        ("in all with Spark: its start, workers, hand-over", entries / in_spark),
    )
    return Breakdown(
        f"Reading {entries:,} entries as one partition",
        (
            *((what, f"{seconds / entries * 1e6:.2f} µs an entry") for what, seconds in parts),
            ("of that the start: a query of one entry", f"{start_s * 1000:.0f} ms"),
        ),
    )


def _cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
