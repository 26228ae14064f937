"""`redis-stream` as Spark runs it: planned, pickled, executed in workers, restarted from checkpoints."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from reaper.pipeline.lake.supervisor import PYTHON_IS_LATE
from reaper.pipeline.redis_stream import register
from reaper.pipeline.redis_stream.ranges import LEAST_ENTRIES_A_PART
from tests.conftest import StartServer
from tests.pipeline.streams import JOURNAL, add, connected, counts, set_options, trim
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

SECRET = "correct-horse"  # noqa: S105
LOOK_S = 1


@pytest.fixture
def redis_server(start_server: StartServer) -> RedisServer:
    """A server that keeps its data; what differs between versions is tested without Spark."""
    return start_server(appendonly="yes", appendfsync="always")


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def streaming(spark: SparkSession, server: RedisServer, **given: Any) -> DataStreamReader:
    return spark.readStream.format("redis-stream").options(**set_options(server, **given))


def keep_in(found: list[int]) -> Callable[[DataFrame, int], None]:
    """Return a sink that remembers the numbers it was given, batch by batch."""

    def keep(batch: DataFrame, _number: int) -> None:
        found.extend(int(row.n) for row in batch.collect())

    return keep


def start(source: DataStreamReader, found: list[int], checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """Start a query, and return it once it has read, or is over."""
    rows = source.load().selectExpr("fields['n'] AS n")
    stored = rows.writeStream.foreachBatch(keep_in(found)).option("checkpointLocation", str(checkpoint))
    return started(stored.trigger(**trigger).start)


def started(begin: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query, and again where Python was late: Spark grants it 10 s, and the query has read nothing then."""
    while True:
        query = begin()
        try:
            while not (query.awaitTermination(LOOK_S) or query.lastProgress):
                pass
        except StreamingQueryException as error:
            if PYTHON_IS_LATE in str(error):
                continue
        return query


def test_a_query_reads_in_parallel(spark: SparkSession, redis_server: RedisServer, tmp_path: Path) -> None:
    add(redis_server, *range(1, 2 * LEAST_ENTRIES_A_PART + 1))
    found: list[int] = []
    parts: set[int] = set()

    def keep(batch: DataFrame, _number: int) -> None:
        for row in batch.selectExpr("int(fields['n']) AS n", "spark_partition_id() AS part").collect():
            found.append(row.n)
            parts.add(row.part)

    stored = streaming(spark, redis_server, partitions=2).load().writeStream.foreachBatch(keep)
    trigger = stored.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    started(trigger.start).awaitTermination()
    assert sorted(found) == list(range(1, 2 * LEAST_ENTRIES_A_PART + 1))
    assert parts == {0, 1}


def test_a_query_reads_in_limited_batches_and_shows_how_far_it_is_behind(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    add(redis_server, *range(1, 6))
    found: list[int] = []
    source = streaming(spark, redis_server, maxEntriesPerTrigger=2)
    query = start(source, found, tmp_path, availableNow=True)
    query.awaitTermination()
    told = [json.loads(progress.json)["sources"][0] for progress in query.recentProgress]
    assert found == [1, 2, 3, 4, 5]
    assert [source["numInputRows"] for source in told] == [2, 2, 1]
    behind = [source["latestOffset"][JOURNAL].get("behind") for source in told]
    assert behind == ([3, 1, 0] if counts(redis_server) else [None] * 3)

    add(redis_server, 6)
    start(source, found, tmp_path, availableNow=True).awaitTermination()
    assert found == [1, 2, 3, 4, 5, 6]

    add(redis_server, *range(7, 20))
    trim(redis_server, 9)
    lost = (
        "4 entries after 6-0 were trimmed before" if counts(redis_server) else "entries after 6-0 may have been trimmed"
    )
    with pytest.raises(StreamingQueryException, match=f"stream journal: {lost}"):
        start(source, found, tmp_path, availableNow=True).awaitTermination()


@pytest.mark.anyio
async def test_a_query_outlives_a_restart_of_redis(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    add(redis_server, 1, 2)
    found: list[int] = []
    query = start(streaming(spark, redis_server), found, tmp_path, processingTime="0 seconds")

    def has_found(*numbers: int) -> bool:
        assert query.isActive, query.exception()
        return found == [*numbers]

    def asks() -> bool:
        assert query.isActive, query.exception()
        return bool(query.status["message"].startswith("Getting offsets"))

    await wait_until(lambda: has_found(1, 2), "the first entries are read")
    redis_server.kill()
    await wait_until(asks, "the query asks again")
    redis_server.start()
    add(redis_server, 3)
    await wait_until(lambda: has_found(1, 2, 3), "the next entry is read")
    query.stop()


def test_the_password_is_nowhere(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    add(redis_server, 1)
    with connected(redis_server) as client:
        client.config_set("requirepass", SECRET)
    spark.sparkContext.environment["SECRET_URL"] = redis_server.url.replace("://", f"://:{SECRET}@")
    register(spark)  # its planner gets the environment of now
    found: list[int] = []
    options = {"url": "", "urlEnv": "SECRET_URL"}
    query = start(streaming(spark, redis_server, **options), found, tmp_path / "checkpoint", availableNow=True)
    query.awaitTermination()
    query.explain(extended=True)
    shown = [progress.json for progress in query.recentProgress]
    assert found == [1]
    assert SECRET not in "".join(shown) + "".join(capfd.readouterr())
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
