"""Redis goes away and comes back; readers and writers wait."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from reaper.pipeline.redis_stream import DataLossError, RedisStreamError, UnreachableError
from reaper.pipeline.redis_stream.columns import read_range
from reaper.pipeline.redis_stream.link import Link
from reaper.pipeline.redis_stream.once import ROWS_AT_ONCE
from reaper.pipeline.redis_stream.writing import Writer, pack_command
from tests.conftest import StartProxy, StartServer
from tests.pipeline.streams import FOR_EVER_S, JOURNAL, ROW, add, connected, parse, query, read_all, set_options
from tests.support.proxy import command
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.contract

SECRET = "correct-horse"  # noqa: S105


@contextmanager
def in_thread(work: Callable[[], Any]) -> "Iterator[Future[Any]]":
    with ThreadPoolExecutor(1) as executor:
        yield executor.submit(work)


def waits(caplog: pytest.LogCaptureFixture) -> Callable[[], bool]:
    """Return a condition: somebody has lost contact, and tries again."""
    return lambda: any("no contact with" in line for line in caplog.messages)


@pytest.mark.anyio
async def test_planning_waits_for_a_server_that_restarts(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(appendonly="yes")
    add(server, 1, 2)
    with query(server) as running:
        assert running.batch() == [1, 2]
        server.stop()
        with in_thread(running.batch) as batch:
            await wait_until(waits(caplog), "the reader has noticed")
            server.start()
            assert batch.result() == []
        add(server, 3)
        assert running.batch() == [3]


@pytest.mark.anyio
async def test_a_task_goes_on_where_it_was_when_the_server_is_back(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(appendonly="yes")
    add(server, *range(1, 101))
    with query(server) as running:
        running.plan()
    batches = read_range(running.planned[0], parse(server, pageSize=10, batchSize=10), ROW)
    read = next(batches).num_rows
    server.stop()
    with in_thread(lambda: sum(batch.num_rows for batch in batches)) as rest:
        await wait_until(waits(caplog), "the reader has noticed")
        server.start()
        assert read + rest.result() == 100


@pytest.mark.anyio
async def test_a_server_that_comes_back_empty_is_loss(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    add(server, *range(1, 101))
    with query(server) as running:
        running.plan()
    batches = read_range(running.planned[0], parse(server, pageSize=10, batchSize=10), ROW)
    next(batches)
    server.kill()
    with in_thread(lambda: list(batches)) as rest:
        await wait_until(waits(caplog), "the reader has noticed")
        server.start()
        with pytest.raises(DataLossError, match="it is gone"):
            rest.result()


@pytest.mark.anyio
async def test_a_frozen_server_is_waited_for(
    start_server: StartServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reaper.pipeline.redis_stream.connecting.TIMEOUT_S", 0.2)
    server = start_server()
    add(server, 1)
    with query(server) as running:
        running.start()
        server.pause()
        with in_thread(running.batch) as batch:
            await wait_until(waits(caplog), "the reader has noticed")
            server.resume()
            assert batch.result() == [1]


@pytest.mark.anyio
async def test_a_reply_that_is_lost_is_asked_for_again(server: RedisServer, proxy: StartProxy) -> None:
    add(server, *range(1, 31))
    through = await proxy(server)
    url = f"redis://127.0.0.1:{through.port}/0"
    lost = through.drop_reply(command("XRANGE"), nth=3)
    with in_thread(lambda: read_all(server, url=url, pageSize=10)) as read:
        await lost.wait()
        await wait_until(read.done, "everything is read")
    assert [int(row["n"]) for row in read.result()] == list(range(1, 31))


def test_after_the_time_is_over_the_query_fails_and_says_where(start_server: StartServer) -> None:
    server = start_server()
    options = set_options(server, retrySeconds=0.3)
    server.stop()
    with pytest.raises(UnreachableError, match=rf"no contact with Redis at {options['url']} for 0.3 s: "):
        read_all(server, retrySeconds=0.3)


@pytest.mark.parametrize("password", ["", f":wrong-{SECRET}@"])
def test_a_wrong_password_is_refused_at_once_and_not_shown(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, password: str
) -> None:
    server = start_server()
    server.command("CONFIG", "SET", "requirepass", SECRET)
    monkeypatch.setenv("SECRET_URL", server.url.replace("://", f"://{password}"))
    with pytest.raises(RedisStreamError, match=r"Authentication required|invalid") as caught:
        read_all(server, url="", urlEnv="SECRET_URL")
    assert SECRET not in str(caught.value) + caplog.text


def test_with_the_password_of_the_environment_it_reads(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    add(server, 1)
    server.command("CONFIG", "SET", "requirepass", SECRET)
    monkeypatch.setenv("SECRET_URL", server.url.replace("://", f"://:{SECRET}@"))
    assert [row["n"] for row in read_all(server, url="", urlEnv="SECRET_URL")] == ["1"]


# ---- writing


@pytest.mark.anyio
async def test_a_writer_goes_on_when_the_server_is_back(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(appendonly="yes")
    first_is_written = threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": ["1", "2"]})
        first_is_written.set()
        server.stop()
        yield pa.RecordBatch.from_pydict({"n": ["3"]})

    writer = Writer(parse(server), StructType().add("n", "string"))
    with in_thread(lambda: writer.write(batches())) as written:
        await wait_until(waits(caplog), "the writer has noticed")
        server.start()
        written.result()
    assert first_is_written.is_set()
    assert [row["n"] for row in read_all(server)] == ["1", "2", "3"]


@pytest.mark.anyio
async def test_only_what_has_no_reply_is_written_again(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    lost = through.drop_reply(command("XADD"), nth=2)
    commands = [pack_command([b"XADD", JOURNAL.encode(), b"*", b"n", b"%d" % number]) for number in (1, 2, 3)]
    link = Link(f"redis://127.0.0.1:{through.port}/0", FOR_EVER_S)
    with in_thread(lambda: link.write(commands)) as written:
        await lost.wait()
        await wait_until(written.done, "everything is written")
    link.close()
    found = [row["n"] for row in read_all(server)]
    assert found[0] == "1"
    assert "1" not in found[1:]
    assert {"2", "3"} <= set(found)


@pytest.mark.anyio
async def test_rows_with_keys_are_there_once_though_a_reply_was_lost(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    lost = through.drop_reply(command("EVAL"), nth=2)
    rows = [str(number) for number in range(3 * ROWS_AT_ONCE)]
    options = parse(server, url=f"redis://127.0.0.1:{through.port}/0", dedupeColumn="n")
    writer = Writer(options, StructType().add("n", "string"))
    with in_thread(lambda: writer.write(iter([pa.RecordBatch.from_pydict({"n": rows})]))) as written:
        await lost.wait()
        await wait_until(written.done, "everything is written")
        written.result()
    assert [row["n"] for row in read_all(server)] == rows


def test_a_full_memory_stops_the_writer_with_redis_words(start_server: StartServer) -> None:
    server = start_server(maxmemory="1mb")
    server.command("CONFIG", "SET", "maxmemory", "1")
    writer = Writer(parse(server), StructType().add("n", "string"))
    with pytest.raises(RedisStreamError, match="refused an XADD: command not allowed when used memory"):
        writer.write(iter([pa.RecordBatch.from_pydict({"n": ["1"]})]))
    with connected(server) as client:
        assert client.xlen(JOURNAL) == 0


@pytest.mark.parametrize("option", ["decode_responses=true", "protocol=3", "socket_timeout=0.000001"])
def test_an_option_in_the_url_that_would_win_over_ours_is_refused(server: RedisServer, option: str) -> None:
    with pytest.raises(
        RedisStreamError, match=f"option '{option.partition('=')[0]}' is not for an address of redis://"
    ):
        Link(f"{server.url}?{option}", 0).ask(("PING",))


def test_an_option_in_the_url_that_cannot_work_is_told(server: RedisServer) -> None:
    link = Link(f"{server.url}?client_name=spark", 1)
    assert link.ask(("ECHO", b"\xff"), ("CLIENT", "GETNAME")) == [b"\xff", b"spark"]
    link.close()
    with pytest.raises(RedisStreamError, match=r"an option that cannot work: .*nonsense"):
        Link("rediss://h?ssl_cert_reqs=nonsense", 0).ask(("PING",))
