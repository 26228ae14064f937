"""Readers, writers and the pipeline in a cluster: streams at every master, slots that move, masters that are killed."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from reaper.pipeline.lake.ingest import Run, ingest
from reaper.pipeline.lake.tables import lake_at, read_events
from reaper.pipeline.lake.trim import trim
from reaper.pipeline.redis_stream import RedisStreamError, UnreachableError, register
from reaper.pipeline.redis_stream.cluster import ClusterLink, key_of_packed, open_link
from reaper.pipeline.redis_stream.link import Link
from reaper.pipeline.redis_stream.writing import BatchWriter, pack_command
from reaper.pipeline.settings import PipelineSettings
from tests.conftest import StartServer
from tests.pipeline.journals import write_events
from tests.pipeline.streams import add, parse, query, read_all, set_options
from tests.support.cluster import Cluster, started_cluster
from tests.support.servers import RedisServer, default_binary, free_port
from tests.support.waiting import wait_until_here

pytestmark = pytest.mark.anyio

TARGET = StructType().add("target", "string").add("n", "string")


@pytest.fixture(scope="module")
def masters() -> Iterator[Cluster]:
    """Three masters that share the slots; each test has streams of its own."""
    with started_cluster(default_binary()) as cluster:
        yield cluster


@pytest.fixture
def streams(masters: Cluster) -> Iterator[list[str]]:
    """A name at each master; what is there is deleted afterwards."""
    yield masters.streams()
    for node in masters.nodes:
        node.flush()


def numbers(cluster: Cluster, stream: str) -> list[int]:
    """Return the numbers of a stream's entries, as its owner has them."""
    return [int(fields[b"n"]) for _, fields in cluster.owner(stream).command("XRANGE", stream, "-", "+")]


def write(cluster: Cluster, rows: list[tuple[str, int]], **given: Any) -> None:
    """Write rows as a task does: each to the stream that it names."""
    columns = [pa.array([stream for stream, _ in rows]), pa.array([str(n) for _, n in rows])]
    options = parse(cluster, streamColumn="target", streamPattern="*", **given)
    BatchWriter(options, TARGET).write(iter([pa.RecordBatch.from_arrays(columns, names=TARGET.names)]))


def move(cluster: Cluster, stream: str) -> None:
    """Give a stream's slot, with what is in it, to another master."""
    to = next(node for node in cluster.nodes if node is not cluster.owner(stream))
    cluster.begin_move(stream, to)
    cluster.move_keys(stream, to)
    cluster.end_move(stream, to)


def test_streams_at_every_master_are_found_and_read(masters: Cluster, streams: list[str]) -> None:
    for number, stream in enumerate(streams):
        add(masters.owner(stream), *range(10 * number + 1, 10 * number + 6), stream=stream)
    expected = [(stream, n) for number, stream in enumerate(streams) for n in range(10 * number + 1, 10 * number + 6)]
    for name, value in (("streamPattern", "jobs*"), ("stream", ",".join(streams))):
        asked: dict[str, Any] = {name: value, "partitions": 2, "pageSize": 2}
        found = read_all(masters, **asked)
        assert sorted((row["stream"], int(row["n"])) for row in found) == sorted(expected)


def test_rows_are_written_to_where_their_streams_are_in_their_order(masters: Cluster, streams: list[str]) -> None:
    write(masters, [(streams[n % 3], n) for n in range(3_000)])
    for place, stream in enumerate(streams):
        assert numbers(masters, stream) == list(range(place, 3_000, 3))


def test_rows_with_keys_are_written_once_at_every_master_and_notes_move_with_their_stream(
    masters: Cluster, streams: list[str]
) -> None:
    rows = [(streams[n % 3], n) for n in range(900)]
    write(masters, rows[:600], dedupeColumn="n")
    move(masters, streams[0])
    write(masters, rows, dedupeColumn="n")
    for place, stream in enumerate(streams):
        assert numbers(masters, stream) == list(range(place, 900, 3))


def test_a_query_follows_slots_that_move_between_and_within_batches(masters: Cluster, streams: list[str]) -> None:
    with query(masters, streamPattern="jobs*", pageSize=2) as running:
        for number, stream in enumerate(streams, start=1):
            add(masters.owner(stream), number, stream=stream)
        assert sorted(running.batch()) == [1, 2, 3]
        move(masters, streams[0])
        for number, stream in enumerate(streams, start=1):
            add(masters.owner(stream), *range(10 * number, 10 * number + 5), stream=stream)
        end = running.plan()
        move(masters, streams[1])
        found, running.offset = running.read(), end
        assert sorted(int(row["n"]) for row in found) == [n + m for n in (10, 20, 30) for m in range(5)]
        write(masters, [(stream, 99) for stream in streams])
        assert running.batch() == [99, 99, 99]


def waits(act: Callable[[], object], through: Callable[[], object], log: pytest.LogCaptureFixture) -> None:
    """Begin ``act`` in a thread, see that it waits, do ``through``, and see that it ends."""
    log.clear()
    thread = threading.Thread(target=act)
    thread.start()
    wait_until_here(lambda: "no contact with" in log.text, "it waits")
    assert thread.is_alive()
    through()
    wait_until_here(lambda: not thread.is_alive(), "it goes on")
    assert "again, after" in log.text


def test_what_lies_in_a_slot_that_is_half_moved_is_waited_for(
    masters: Cluster, streams: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    stream = streams[0]
    add(masters.owner(stream), 1, 2, 3, stream=stream)
    to = next(node for node in masters.nodes if node is not masters.owner(stream))
    masters.begin_move(stream, to)
    masters.move_keys(stream, to)
    found: list[int] = []
    waits(
        lambda: found.extend(int(row["n"]) for row in read_all(masters, stream=stream)),
        lambda: masters.end_move(stream, to),
        caplog,
    )
    assert found == [1, 2, 3]
    from_ = next(node for node in masters.nodes if node is not to)
    masters.begin_move(stream, from_)
    masters.move_keys(stream, from_)
    waits(lambda: write(masters, [(stream, 4)]), lambda: masters.end_move(stream, from_), caplog)
    assert numbers(masters, stream) == [1, 2, 3, 4]


def test_what_redis_refuses_is_told(masters: Cluster, streams: list[str]) -> None:
    masters.owner(streams[1]).command("SET", streams[1], "no stream")
    with pytest.raises(RedisStreamError, match="refused an XADD: WRONGTYPE"):
        write(masters, [(stream, 1) for stream in streams])
    with pytest.raises(RedisStreamError, match=r"refused XINFO STREAM .*WRONGTYPE"):
        read_all(masters, stream=",".join(streams))


def test_a_cluster_that_nobody_knows_is_told(start_server: StartServer) -> None:
    port = free_port()
    with closing(open_link(f"redis+cluster://127.0.0.1:{port}", 0.0)) as link:
        with pytest.raises(UnreachableError, match="no node tells who has which slot: Error 111"):
            link.find_keys("*")
        with pytest.raises(UnreachableError, match="no node tells"):
            link.ask_one("XLEN", "jobs")
    alone = start_server(cluster_enabled="yes")
    with (
        closing(open_link(f"redis+cluster://127.0.0.1:{alone.port}", 0.0)) as link,
        pytest.raises(UnreachableError, match="knows nobody with slots"),
    ):
        link.write([pack_command([b"XADD", b"jobs", b"*", b"n", b"1"])])
    single = start_server()
    with (
        closing(open_link(f"redis+cluster://127.0.0.1:{single.port}", 0.0)) as link,
        pytest.raises(RedisStreamError, match="does not say who has which slot"),
    ):
        link.ask_one("XLEN", "jobs")


def test_who_is_no_cluster_gets_a_link_to_one_server() -> None:
    assert type(open_link("redis://h", 0.0)) is Link
    assert type(open_link("rediss+cluster://h", 0.0)) is ClusterLink


@pytest.mark.parametrize("key", [b"orders", b"", b"a\r\nb", "für".encode(), b"\xff" * 300])
def test_the_key_is_read_from_a_packed_command(key: bytes) -> None:
    assert key_of_packed(pack_command([b"XADD", key, b"*", b"n", b"1\r\n2"])) == key


# ---- masters that are killed


@pytest.mark.matrix
async def test_a_query_outlives_the_death_of_a_master() -> None:
    with started_cluster(default_binary(), replicas=1) as cluster:
        streams = cluster.streams()
        for number, stream in enumerate(streams, start=1):
            add(cluster.owner(stream), *range(100 * number, 100 * number + 50), stream=stream)
        before = cluster.owner(streams[0])
        heir = next(node for node in cluster.nodes[3:] if node.command("ROLE")[2] == before.port)
        wait_until_here(lambda: _entries(heir, streams[0]) == 50, "the replica has them")
        with query(cluster, streamPattern="jobs*", pageSize=10) as running:
            end = running.plan()
            before.kill()
            found, running.offset = running.read(), end
            assert sorted(int(row["n"]) for row in found) == [n + m for n in (100, 200, 300) for m in range(50)]
            after = await cluster.has_failed_over(streams[0], before)
            add(after, 1_000, stream=streams[0])
            write(cluster, [(streams[0], 1_001)])
            assert running.batch() == [1_000, 1_001]


def _entries(node: RedisServer, stream: str) -> int:
    with node.client() as client:
        own = client.client()
        own.execute_command("READONLY")
        number = int(own.execute_command("XLEN", stream))
        own.close()
    return number


# ---- Spark, and the pipeline


@pytest.mark.matrix
def test_spark_reads_and_writes_streams_of_a_cluster(spark: SparkSession, masters: Cluster, streams: list[str]) -> None:
    register(spark)
    names = ", ".join(f"'{stream}'" for stream in streams)
    rows = spark.range(300, numPartitions=2).selectExpr(f"array({names})[id % 3] AS target", "id AS n")
    options = set_options(masters, streamColumn="target", streamPattern="jobs*")
    rows.write.format("redis-stream").options(**options).mode("append").save()
    assert [len(numbers(masters, stream)) for stream in streams] == [100, 100, 100]
    source = spark.read.format("redis-stream").options(**set_options(masters, streamPattern="jobs*", partitions=2))
    read = source.schema("stream string, id string, n string").load().collect()
    assert {(row.stream, int(row.n)) for row in read} == {(streams[n % 3], n) for n in range(300)}


@pytest.mark.matrix
def test_journals_of_a_cluster_come_into_the_lake_once_and_are_trimmed(
    spark: SparkSession, masters: Cluster, streams: list[str], tmp_path: Path
) -> None:
    journals = [f"{{{stream}}}:journal" for stream in streams]
    for journal in journals:
        write_events(masters.owner(journal), 300, journal)
    settings = PipelineSettings(redis_url=masters.url, trigger=timedelta(milliseconds=100), margin=timedelta(0))
    layout, now = lake_at(tmp_path / "lake"), Run(available_now=True)
    assert ingest(settings, layout, lambda: spark, now).events == 900
    move(masters, streams[0])
    for journal in journals:
        write_events(masters.owner(journal), 100, journal, start=300)
    assert ingest(settings, layout, lambda: spark, now).events == 300
    found = read_events(spark, layout.root).select("job", "stream").collect()
    assert len(found) == len(set(found)) == 1_200
    assert set(json.loads(layout.committed_offset() or "{}")) == set(journals)
    done = anyio.run(partial(trim, settings, layout, url=masters.url))
    assert {row.stream for row in done} == set(journals)
    assert all(row.removed >= 300 and not row.kept_because for row in done)
