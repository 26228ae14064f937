"""The synchronous producer: its client, its threads, and its behavior without contact.

Its requests and rejections, and that a job is enqueued once, are tested in `test_producer`, with both.
"""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
import redis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.conftest import StartProxy, StartServer
from tests.support.processes import Processes
from tests.support.proxy import runs
from tests.support.servers import RedisServer
from workers import ConfigurationError, Producer, SyncProducer, UnreachableError
from workers.protocol.calls.enqueueing import ENQUEUE
from workers.sync_producer import MAX_CONNECTIONS

pytestmark = pytest.mark.anyio


@pytest.fixture
def orders(server: RedisServer) -> Iterator[SyncProducer]:
    with SyncProducer("orders", server.url) as opened:
        yield opened


def ids_in(server: RedisServer) -> list[str]:
    with redis.Redis.from_url(server.url) as client:
        return [fields[b"reaper.job"].decode() for _, fields in client.xrange("orders")]


def in_threads(count: int, work: Callable[[], object]) -> None:
    """Call ``work`` in so many threads, all at once, and wait for them."""
    gate = threading.Barrier(count)

    def run() -> None:
        gate.wait(60)
        work()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_any_number_of_threads_may_use_one(server: RedisServer, orders: SyncProducer) -> None:
    ids: list[str] = []

    def send() -> None:
        for _ in range(5):
            ids.append(orders.enqueue({"thread": threading.get_ident()}))
            orders.enqueue({"from": "all"}, job_id="one")

    in_threads(2 * MAX_CONNECTIONS, send)
    assert len(set(ids)) == 10 * MAX_CONNECTIONS
    assert sorted(ids_in(server)) == sorted([*ids, "one"])


async def test_a_lost_reply_disturbs_no_other_thread(server: RedisServer, client: Redis, proxy: StartProxy) -> None:
    """It has idle connections dropped, while other threads take them."""
    through = await proxy(server)
    await client.script_load(ENQUEUE.source)
    for nth in range(1, 60, 7):
        through.drop_reply(runs(ENQUEUE), nth)
    ids: list[str] = []

    def work() -> None:
        with SyncProducer("orders", through.url) as orders:
            in_threads(8, lambda: ids.extend(orders.enqueue({"n": n}) for n in range(10)))

    await anyio.to_thread.run_sync(work)
    assert sorted(ids_in(server)) == sorted(ids)
    assert len(ids) == 80


async def test_a_job_sent_in_an_outage_is_enqueued_later(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            server.restart()

    monkeypatch.setattr("workers.sync_producer.sleep", pause)
    with SyncProducer("orders", server.url) as orders:
        orders.enqueue({"n": 1})
        server.stop()
        job_id = orders.enqueue({"n": 2})
    assert ids_in(server) == [job_id]
    assert len(pauses) >= 3


def test_without_contact_it_says_that_nobody_knows_and_has_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("workers.outbox.monotonic", lambda: now[0])
    monkeypatch.setattr("workers.sync_producer.sleep", lambda seconds: now.append(now.pop() + seconds))
    unknown = pytest.raises(UnreachableError, match=r"cannot confirm 1 job of 'orders', of which the first is mail-1")
    with SyncProducer("orders", "redis://127.0.0.1:1") as orders, unknown:
        orders.enqueue({"n": 1}, job_id="mail-1")
    assert 15 < now[0] < 18


FORKING = """
import json, os, sys
from workers import SyncProducer

orders = SyncProducer("orders", sys.argv[1])
ids = [orders.enqueue({"from": "parent"})]
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, json.dumps([orders.enqueue({"from": "child"}) for _ in range(20)]).encode())
    os._exit(0)
ids += [orders.enqueue({"from": "parent"}) for _ in range(20)]
os.wait()
print(json.dumps(ids + json.loads(os.read(reader, 100_000))))
"""


async def test_after_a_fork_each_process_has_connections_of_its_own(server: RedisServer, processes: Processes) -> None:
    program = processes.python("-c", FORKING, server.url)
    assert await program.wait() == 0
    ids = json.loads(program.output.strip().splitlines()[-1])
    assert len(ids) == 41
    assert sorted(ids_in(server)) == sorted(ids)


def test_it_keeps_its_connections_while_the_server_is_full(
    orders: SyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, run = [RedisConnectionError("max number of clients reached")], ENQUEUE.run_blocking

    def reject_once(*words: Any) -> Any:
        if errors:
            raise errors.pop()
        return run(*words)

    orders.enqueue({"n": 1})
    [connection] = orders._client.connection_pool._connections  # type: ignore[attr-defined]
    before = connection._sock
    monkeypatch.setattr(ENQUEUE, "run_blocking", reject_once)
    orders.enqueue({"n": 2})
    assert connection._sock is before


# ---- the address of producers of both kinds


async def test_an_error_after_the_write_never_says_that_nothing_was_written(server: RedisServer) -> None:
    async with Producer("orders", server.url) as orders:
        pool = orders._client.connection_pool

        class Breaking(pool.connection_class):  # type: ignore[misc,name-defined]
            async def read_response(self, *words: Any, **options: Any) -> Any:
                reply = await super().read_response(*words, **options)
                if reply == [1]:  # the script has enqueued the job
                    raise RuntimeError("broken")
                return reply

        pool.connection_class = Breaking
        with pytest.raises(UnreachableError, match=r"cannot confirm 1 job of 'orders', .*: broken"):
            await orders.enqueue({"n": 1}, job_id="a")
    assert len(ids_in(server)) == 1


@pytest.mark.parametrize("variable", ["REDIS_URL", "REAPER_REDIS_URL"])
async def test_without_an_address_the_environment_names_one(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("REAPER_STREAM", "of-a-worker")
    monkeypatch.setenv(variable, server.url)
    async with Producer("orders") as orders:
        await orders.enqueue({"n": 1})
    with SyncProducer("orders") as others:
        others.enqueue({"n": 2})
    assert len(ids_in(server)) == 2


def test_a_misspelt_variable_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAPER_REDIS_ULR", "redis://127.0.0.1:1/0")
    for kind in (Producer, SyncProducer):
        with pytest.raises(ConfigurationError, match="Did you mean 'REAPER_REDIS_URL'"):
            kind("orders")
