"""Redis goes away and comes back; readers wait."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from reaper.pipeline.redis_stream import DataLossError, RedisStreamError, UnreachableError
from tests.conftest import StartProxy, StartServer
from tests.pipeline.streams import add, pages_of, query, read_all, small_pages
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
    """Return a condition: a reader has lost contact, and tries again."""
    return lambda: any("cannot reach Redis" in line for line in caplog.messages)


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
@pytest.mark.parametrize("keeps", [True, False])
async def test_a_task_continues_when_the_server_is_back_unless_that_has_lost_its_data(
    start_server: StartServer, caplog: pytest.LogCaptureFixture, keeps: bool
) -> None:
    server = start_server(appendonly="yes" if keeps else "no")
    add(server, *range(1, 101))
    with small_pages(10):
        with query(server) as running:
            running.plan()
        pages = pages_of(server, running.planned[0])
        first = next(pages)
        server.stop() if keeps else server.kill()
        with in_thread(lambda: [number for page in pages for number in page]) as rest:
            await wait_until(waits(caplog), "the reader has noticed")
            server.start()
            if keeps:
                assert first + rest.result() == list(range(1, 101))
            else:
                with pytest.raises(DataLossError, match="it is gone"):
                    rest.result()


@pytest.mark.anyio
async def test_a_frozen_server_is_waited_for(
    start_server: StartServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reaper.pipeline.redis_stream.client.TIMEOUT_S", 0.2)
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
    with small_pages(10), in_thread(lambda: read_all(server, url=url)) as read:
        await lost.wait()
        await wait_until(read.done, "everything is read")
    assert [int(row["n"]) for row in read.result()] == list(range(1, 31))


def test_after_the_time_is_over_the_query_fails_and_names_the_address(start_server: StartServer) -> None:
    server = start_server()
    url = server.url
    server.stop()
    with pytest.raises(UnreachableError, match=rf"no contact with Redis at {url} for 0.3 s: "):
        read_all(server, url=url, retrySeconds=0.3)


@pytest.mark.parametrize("password", ["", f":wrong-{SECRET}@"])
def test_a_wrong_password_is_told_at_once_and_not_shown(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, password: str
) -> None:
    server = start_server()
    server.command("CONFIG", "SET", "requirepass", SECRET)
    monkeypatch.setenv("SECRET_URL", server.url.replace("://", f"://{password}"))
    with pytest.raises(RedisStreamError, match=r"(?i)authenticat|invalid") as caught:
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
