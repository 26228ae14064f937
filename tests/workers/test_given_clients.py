"""A producer with a client of the program's own: it enqueues, or it says before it sends that it cannot."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Connection, ConnectionPool, Redis

from tests.support.processes import Processes
from tests.support.servers import RedisServer
from workers import ConfigurationError, Producer, SyncProducer, UnreachableError
from workers.protocol.errors import UnexpectedReplyError

pytestmark = pytest.mark.anyio

LOOPS = """
import asyncio, sys
from redis.asyncio import Redis
from workers import Producer

client = Redis.from_url(sys.argv[1], OPTIONS)
orders = Producer("orders", client)

async def send(producer):
    await producer.enqueue({"n": 1})

async def use():
    await asyncio.gather(*(used.ping() for _ in range(3)))

used = Redis.from_url(sys.argv[1], OPTIONS)
asyncio.run(use())
others = [Producer("orders", one) for one in (client, client, used)]
for producer in (orders, orders, orders, *others):
    try:
        asyncio.run(send(producer))
        print("enqueued")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""
FORKS = """
import os, sys
from redis import Redis
from workers import SyncProducer
orders = SyncProducer("orders", Redis.from_url(sys.argv[1]))
orders.enqueue({"n": 0})
children = []
for number in range(1, 5):
    child = os.fork()
    if child == 0:
        for _ in range(10):
            orders.enqueue({"n": number})
        os._exit(0)
    children.append(child)
for _ in range(10):
    orders.enqueue({"n": 5})
print([os.waitpid(child, 0)[1] for child in children])
"""


@pytest.fixture
def blocking(server: RedisServer) -> Iterator[BlockingRedis]:
    with BlockingRedis.from_url(server.url) as client:
        yield client


def jobs(server: RedisServer) -> int:
    return int(server.command("XLEN", "orders"))


# ---- event loops


@pytest.mark.processes
@pytest.mark.parametrize("options", ["", "decode_responses=True", "protocol=3"])
async def test_a_client_serves_one_event_loop_and_is_rejected_in_another_before_anything_is_sent(
    server: RedisServer, processes: Processes, options: str
) -> None:
    program = processes.python("-c", LOOPS.replace("OPTIONS", options), server.url)
    assert await program.wait() == 0
    answers = program.output.split("\n")
    rejected = "ConfigurationError: the producer's client was used in another event loop. Give the producer an address"
    assert answers[0] == "enqueued"
    assert [answer.startswith(rejected) for answer in answers[1:6]] == [True] * 5
    assert jobs(server) == 1


def test_a_client_that_is_closed_at_the_end_of_each_event_loop_serves_the_next_one(server: RedisServer) -> None:
    client = Redis.from_url(server.url)

    async def send() -> None:
        await Producer("orders", client).enqueue({"n": 1})
        await client.aclose()

    for _ in range(3):
        asyncio.run(send())
    assert jobs(server) == 3


def test_a_producer_with_an_address_serves_one_event_loop_after_the_other(server: RedisServer) -> None:
    orders = Producer("orders", server.url)

    async def send() -> None:
        async with orders:
            await orders.enqueue({"n": 1})

    for _ in range(5):
        asyncio.run(send())
    assert jobs(server) == 5


async def test_an_error_after_the_write_never_says_that_nothing_was_written(server: RedisServer) -> None:
    class Breaking(Connection):
        async def read_response(self, *words: Any, **options: Any) -> Any:
            reply = await super().read_response(*words, **options)
            if reply == [1]:  # the script has enqueued the job
                raise RuntimeError("Event loop is closed")
            return reply

    pool = ConnectionPool.from_url(server.url, protocol=2)
    pool.connection_class = Breaking
    async with Redis.from_pool(pool) as client:
        with pytest.raises(UnreachableError, match=r"cannot confirm 1 job of 'orders', .* loop is closed"):
            await Producer("orders", client).enqueue({"n": 1}, job_id="a")
    assert jobs(server) == 1


# ---- other clients that cannot work, and those that can


async def test_a_closed_client_connects_again(server: RedisServer, blocking: BlockingRedis) -> None:
    client = Redis.from_url(server.url)
    await client.aclose()
    await Producer("orders", client).enqueue({"n": 1})
    await client.aclose()
    blocking.close()
    SyncProducer("orders", blocking).enqueue({"n": 2})
    assert jobs(server) == 2


def test_a_blocking_client_that_decodes_replies_will_do(server: RedisServer) -> None:
    with BlockingRedis.from_url(server.url, decode_responses=True) as client:
        assert SyncProducer("orders", client).enqueue({"n": 1}, job_id="j") == "j"
    assert jobs(server) == 1


async def test_a_pipeline_is_rejected(server: RedisServer, blocking: BlockingRedis) -> None:
    async with Redis.from_url(server.url) as client:
        for transaction in (True, False):
            with pytest.raises(ConfigurationError, match="it sends nothing before it is executed"):
                Producer("orders", client.pipeline(transaction=transaction))
            with pytest.raises(ConfigurationError, match="it sends nothing before it is executed"):
                SyncProducer("orders", blocking.pipeline(transaction=transaction))


async def test_a_client_with_a_single_connection_is_rejected(server: RedisServer) -> None:
    async with Redis.from_url(server.url, single_connection_client=True) as client:
        with pytest.raises(ConfigurationError, match="a client with a single connection"):
            Producer("orders", client)
    with (
        BlockingRedis.from_url(server.url, single_connection_client=True) as client,
        pytest.raises(ConfigurationError, match="a client with a single connection"),
    ):
        SyncProducer("orders", client)


async def test_a_job_that_becomes_part_of_a_transaction_is_not_taken_for_enqueued(
    server: RedisServer, blocking: BlockingRedis
) -> None:
    blocking.execute_command("MULTI")
    with pytest.raises(UnexpectedReplyError, match=r"1 job to 'orders': Redis answered b'QUEUED'.*MULTI"):
        SyncProducer("orders", blocking).enqueue({"n": 1})
    blocking.execute_command("DISCARD")
    async with Redis.from_url(server.url) as client:
        await client.execute_command("MULTI")
        with pytest.raises(UnexpectedReplyError, match=r"1 job to 'orders': Redis answered b'QUEUED'.*MULTI"):
            await Producer("orders", client).enqueue({"n": 1})
        await client.execute_command("DISCARD")
    assert jobs(server) == 0


def test_a_blocking_client_serves_all_threads(server: RedisServer, blocking: BlockingRedis) -> None:
    orders = SyncProducer("orders", blocking)

    def send() -> None:
        for number in range(20):
            orders.enqueue({"n": number})

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert jobs(server) == 160


@pytest.mark.processes
async def test_a_blocking_client_serves_each_process_after_a_fork(server: RedisServer, processes: Processes) -> None:
    program = processes.python("-c", FORKS, server.url)
    assert await program.wait() == 0
    assert program.output.strip() == "[0, 0, 0, 0]"
    assert jobs(server) == 51


# ---- no client at all


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
    assert jobs(server) == 2


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAPER_REDIS_ULR", "redis://127.0.0.1:1/0")
    for kind in (Producer, SyncProducer):
        with pytest.raises(ConfigurationError, match="Did you mean 'REAPER_REDIS_URL'"):
            kind("orders")
