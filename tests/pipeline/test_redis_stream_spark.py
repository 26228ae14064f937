"""`redis-stream` as Spark runs it: planned, pickled, executed in workers, restarted from checkpoints."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from reaper.pipeline.lake.ingest import PYTHON_IS_LATE
from reaper.pipeline.redis_stream import register
from reaper.pipeline.redis_stream.shipping import seal
from reaper.pipeline.redis_stream.source import RedisStreamSource
from reaper.pipeline.spark.shipping import ship_by_value
from tests.conftest import StartServer
from tests.pipeline.streams import JOURNAL, add, connected, counts, set_options, trim
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

SECRET = "correct-horse"  # noqa: S105
COLUMNS = "id string, n string"
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
    rows = source.schema(COLUMNS).load()
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


def test_a_table_goes_to_a_stream_and_comes_back(spark: SparkSession, redis_server: RedisServer) -> None:
    jobs = spark.range(100, numPartitions=2).selectExpr("id AS n", "IF(id % 2 = 0, 'even', NULL) AS kind")
    jobs.write.format("redis-stream").options(**set_options(redis_server)).mode("append").save()

    source = spark.read.format("redis-stream").options(**set_options(redis_server, partitions=2, pageSize=10))
    read = (
        source.load()
        .selectExpr("CAST(fields['n'] AS INT)", "fields['kind']", "stream", "spark_partition_id()")
        .collect()
    )
    assert sorted(tuple(row)[:3] for row in read) == [(n, None if n % 2 else "even", JOURNAL) for n in range(100)]
    assert {row[3] for row in read} == {0, 1}


def test_filters_spare_what_cannot_pass_and_columns_have_their_types(
    spark: SparkSession, redis_server: RedisServer
) -> None:
    add(redis_server, *range(1_000, 21_000, 10))
    source = spark.read.format("redis-stream").options(**set_options(redis_server, pushFilters="true"))
    entries = source.schema("ID string, Timestamp timestamp, N int").load()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        redis_server.command("CONFIG", "RESETSTAT")
        found = entries.where("timestamp >= timestamp_millis(20980) and n % 20 = 0").select("id", "n").collect()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert [tuple(row) for row in found] == [("20980-0", 20980)]
    with connected(redis_server) as client:
        assert client.info("commandstats")["cmdstat_xrange"]["calls"] <= 3


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


def test_a_streaming_query_can_enqueue(spark: SparkSession, redis_server: RedisServer, tmp_path: Path) -> None:
    add(redis_server, 1, 2, 3)
    source = streaming(spark, redis_server).load()
    writer = source.writeStream.format("redis-stream").options(**set_options(redis_server, stream="copy", maxlen=1000))
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    started(writer.start).awaitTermination()
    with connected(redis_server) as client:
        copied: Any = client.xrange("copy")
    assert [flat for _, flat in copied] == [[b"n", b"1"], [b"n", b"2"], [b"n", b"3"]]


def test_a_batch_that_spark_repeats_adds_nothing(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    add(redis_server, *range(1, 301))
    options = set_options(redis_server, stream="copy", dedupeColumn="ID")
    for _ in range(2):
        entries = streaming(spark, redis_server, partitions=2, pageSize=50).load()
        writer = entries.writeStream.format("redis-stream").options(**options)
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        started(writer.start).awaitTermination()
        (tmp_path / "commits" / "0").unlink()  # as if it had been killed before it had taken note of its end
        (tmp_path / "commits" / ".0.crc").unlink(missing_ok=True)
    with connected(redis_server) as client:
        copied: Any = client.xrange("copy")
    assert sorted(int(flat[1]) for _, flat in copied) == list(range(1, 301))


def test_the_password_is_nowhere(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    add(redis_server, 1)
    with connected(redis_server) as client:
        client.config_set("requirepass", SECRET)
    (tmp_path / "url").write_text(redis_server.url.replace("://", f"://:{SECRET}@") + "\n")
    found: list[int] = []
    options = {"url": "", "urlFile": tmp_path / "url"}
    query = start(streaming(spark, redis_server, **options), found, tmp_path / "checkpoint", availableNow=True)
    query.awaitTermination()
    batch = spark.read.format("redis-stream").options(**set_options(redis_server, **options)).load()
    batch.explain("extended")
    query.explain(extended=True)
    shown = [progress.json for progress in query.recentProgress]
    assert (found, batch.count()) == ([1], 1)
    assert SECRET not in "".join(shown) + "".join(capfd.readouterr())
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


_ELSEWHERE = """
import pickle, sys
assert "reaper" not in sys.modules
sys.modules["reaper"] = sys.modules["workers"] = None  # not to be found, wherever they are installed
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructType
again = lambda value: pickle.loads(cloudpickle.dumps(value))
sources, options = pickle.load(open(sys.argv[1], "rb"))
"""

_READ = """
for source in sources:
    made = again(source(options))
    reader = made.reader(made.schema())
    for part in map(again, reader.partitions()):
        for batch in again(reader).read(part):
            print(batch.column("id").to_pylist())
"""

_PICKLE_ALL = """
source = sources[0](options)
stream = source.streamReader(source.schema())
writer = sources[0]({**options, "stream": "copy"}).writer(StructType().add("n", StringType()), overwrite=False)
for thing in (source, source.reader(source.schema()), stream, writer):
    code = type(thing).__init__.__code__
    for _ in range(2):
        thing = again(thing)
        print(type(thing).__name__, type(thing).__init__.__code__ is code)
"""


_HAND_ON = """
first, second = (source(options) for source in sources)
open("handed-on", "wb").write(cloudpickle.dumps(second))
"""

_CALL = """
print(pickle.load(open("handed-on", "rb")).reader(None))
"""


def run_elsewhere(program: str, sources: list[type], options: dict[str, str], folder: Path) -> list[str]:
    """Run a program where nobody has installed us, in which these sources and options are known; return its lines."""
    pickled = folder / "source.pickle"
    pickled.write_bytes(cloudpickle.dumps((sources, options)))  # type: ignore[no-untyped-call]
    words = [sys.executable, "-c", _ELSEWHERE + program, str(pickled)]
    ran = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)
    assert ran.stderr == ""
    return ran.stdout.splitlines()


@pytest.mark.parametrize("boxes", [0, 1, 6], ids=["by itself", "in a box", "in more boxes than a process keeps"])
def test_it_runs_by_value_where_nobody_has_installed_it(redis_server: RedisServer, tmp_path: Path, boxes: int) -> None:
    add(redis_server, 1, 2, 3)
    ship_by_value()
    options = set_options(redis_server, partitions=2, pageSize=2, batchSize=2)
    sources = [seal(RedisStreamSource) for _ in range(boxes)] or [RedisStreamSource]
    read = run_elsewhere(_READ, sources, options, tmp_path)
    assert read == ["['1-0']", "['2-0', '3-0']"] * len(sources)


def test_what_travels_in_a_box_is_put_together_once(redis_server: RedisServer, tmp_path: Path) -> None:
    ship_by_value()
    seen = run_elsewhere(_PICKLE_ALL, [seal(RedisStreamSource)], set_options(redis_server), tmp_path)
    named = ["RedisStreamSource", "BatchReader", "StreamReader", "BatchWriter"]
    assert seen == [f"{name} True" for name in named for _ in range(2)]


def test_what_is_handed_on_is_what_was_sealed_last(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship_by_value()
    sources = []
    for said in ("old", "new"):
        monkeypatch.setattr(RedisStreamSource, "reader", lambda _self, _schema, said=said: said)
        sources.append(seal(RedisStreamSource))
    assert run_elsewhere(_HAND_ON, sources, set_options(redis_server), tmp_path) == []
    assert run_elsewhere(_CALL, [], {}, tmp_path) == ["new"]
