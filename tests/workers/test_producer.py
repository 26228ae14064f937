"""The calls of a producer, its rejections, and that a job is enqueued once. With asyncio and without.

Common parts are tested with both. The rest of the synchronous one is in `test_sync_producer`.
"""

import asyncio
import json
import pickle
from collections.abc import AsyncIterator, Iterable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any, Self

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from tests.conftest import StartProxy, StartServer
from tests.support.dump import dump
from tests.support.proxy import runs
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until, wait_until_here
from workers import JobId, NewJob, Producer, SyncProducer
from workers.new_jobs import MAX_FIELDS, Fields
from workers.outbox import CALL_JOBS
from workers.producer import MAX_CALLS
from workers.protocol.calls import CALL_BYTES
from workers.protocol.calls.enqueueing import ENQUEUE
from workers.protocol.connection import commands_client
from workers.protocol.errors import ConfigurationError, InvalidJobError, UnreachableError

pytestmark = pytest.mark.anyio


class InThreads:
    """A synchronous producer with the interface of the other one. Each call is made in a thread."""

    def __init__(self, stream: str, redis: Any = None, **settings: Any) -> None:
        self._producer = SyncProducer(stream, redis, **settings)

    async def enqueue(self, *words: Any, **settings: Any) -> JobId:
        return await anyio.to_thread.run_sync(partial(self._producer.enqueue, *words, **settings))

    async def enqueue_many(self, jobs: Iterable[NewJob | Fields]) -> list[JobId]:
        return await anyio.to_thread.run_sync(self._producer.enqueue_many, jobs)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._producer.close()


NOWHERE = "redis://127.0.0.1:1/0"
"""What connects to it fails."""
AProducer = Producer | InThreads
Make = type[Producer] | type[InThreads]


@pytest.fixture(params=[Producer, InThreads], ids=["asyncio", "threads"])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def orders(server: RedisServer, make: Make) -> AsyncIterator[AProducer]:
    async with make("orders", server.url) as opened:
        yield opened


async def entries(client: Redis) -> list[list[bytes]]:
    rows: Any = await client.xrange("orders")
    return [flat for _, flat in rows]


async def delayed(client: Redis) -> int:
    return int(await client.zcard("{orders}:scheduled"))


# ---- the calls


async def test_an_enqueued_job_has_the_id_that_its_producer_gets(orders: AProducer, client: Redis) -> None:
    job_id = await orders.enqueue({"order": 17})
    assert await entries(client) == [[b"order", b"17", b"reaper.job", job_id.encode()]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"a": "é", "b": b"\xff\x00", "c": 7, "d": 0.5}, ["a", "é", "b", b"\xff\x00", "c", "7", "d", "0.5"]),
        ([("a", 1), (b"a", 2), ("b", "")], ["a", "1", "a", "2", "b", ""]),
        ({"traceparent": "00-ab-cd-01", "tracestate": "x=1"}, ["traceparent", "00-ab-cd-01", "tracestate", "x=1"]),
        ({}, []),
    ],
    ids=["kinds", "duplicates", "trace context", "none"],
)
async def test_fields_arrive_unchanged(
    orders: AProducer, client: Redis, fields: Fields, words: list[str | bytes]
) -> None:
    await orders.enqueue(fields, job_id="j")
    sent = [word.encode() if isinstance(word, str) else word for word in words]
    assert await entries(client) == [[*sent, b"reaper.job", b"j"]]


async def test_a_job_may_ask_for_its_own_times(orders: AProducer, client: Redis) -> None:
    await orders.enqueue({"a": 1}, job_id="j", visibility_timeout=90, timeout=1.5)
    [flat] = await entries(client)
    assert flat == [
        *(b"a", b"1", b"reaper.visibility_ms", b"90000", b"reaper.timeout_ms", b"1500", b"reaper.job", b"j")
    ]


async def test_jobs_keep_their_order_over_many_calls(orders: AProducer, client: Redis, server: RedisServer) -> None:
    jobs: list[NewJob | Fields] = [{"n": n} for n in range(2 * CALL_JOBS + 1)]
    server.command("CONFIG", "RESETSTAT")
    ids = await orders.enqueue_many(jobs)
    flat = await entries(client)
    assert [fields[1] for fields in flat] == [b"%d" % n for n in range(len(jobs))]
    assert [fields[-1].decode() for fields in flat] == ids
    assert await client.zcard("{orders}:enqueued") == 3  # one member a call, not one a job


async def test_large_jobs_go_out_few_at_a_time(orders: AProducer, client: Redis) -> None:
    await orders.enqueue_many([{"data": b"x" * (CALL_BYTES // 2)} for _ in range(6)])
    assert (len(await entries(client)), await client.zcard("{orders}:enqueued")) == (6, 3)


async def test_jobs_of_one_call_may_differ_in_everything(orders: AProducer, client: Redis) -> None:
    ids = await orders.enqueue_many([NewJob({"n": 1}, job_id="a"), NewJob({"n": 2}, delay=60), {"n": 3}])
    assert ids[0] == "a"
    assert [flat[1] for flat in await entries(client)] == [b"1", b"3"]
    assert await delayed(client) == 1


# ---- rejections before any call


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"fields": {"reaper.job": "x"}}, "field 'reaper.job' cannot be enqueued: names that begin with 'reaper.'"),
        ({"fields": {"a": True}}, "a field cannot hold True. Give str, bytes, int or float"),
        ({"fields": {"a": None}}, "a field cannot hold None"),
        ({"fields": {"a": b"x" * 1_048_577}}, "the job has 1048578 bytes, and 'orders' takes at most 1048576"),
        ({"fields": [("a", "")] * (MAX_FIELDS + 1)}, f"the job has {MAX_FIELDS + 1} fields"),
        ({"fields": {}, "job_id": ""}, "job_id has 0 bytes. Give 1 to 256"),
        ({"fields": {}, "job_id": "é" * 129}, "job_id has 258 bytes"),
        ({"fields": {}, "job_id": "a,b"}, "job_id has a comma or a control character"),
        ({"fields": {}, "delay": -1}, "delay cannot be -1"),
        ({"fields": {}, "delay": float("nan")}, "delay cannot be nan"),
        ({"fields": {}, "delay": "5"}, "delay cannot be '5'"),
        ({"fields": {}, "timeout": Decimal(5)}, "timeout cannot be Decimal('5')"),
        ({"fields": {}, "job_id": "\ud800"}, "surrogates not allowed"),
        ({"fields": {"a": "\ud800"}}, "a field cannot hold '\\ud800': 'utf-8' codec"),
        ({"fields": None}, "None is not a job. Give a mapping or pairs"),
        ({"fields": [("a", 1, 2)]}, "is not a job"),
        ({"fields": {}, "timeout": 0}, "timeout cannot be 0. Give seconds from 0.001 to 316224000."),
        ({"fields": {}, "visibility_timeout": 1e12}, "visibility_timeout cannot be"),
    ],
)
async def test_impossible_jobs_are_rejected_before_any_call(
    make: Make, arguments: dict[str, Any], sentence: str
) -> None:
    async with make("orders", NOWHERE) as orders:
        with pytest.raises(InvalidJobError) as rejected:
            await orders.enqueue(**arguments)
    assert sentence in str(rejected.value)


@pytest.mark.parametrize("jobs", [[{"a": 1}, {"a": None}], {"order": 17}, "ab"])
async def test_one_job_that_cannot_be_or_no_list_of_jobs_keeps_all_from_being_sent(make: Make, jobs: Any) -> None:
    async with make("orders", NOWHERE) as orders:
        with pytest.raises(InvalidJobError):
            await orders.enqueue_many(jobs)


async def test_the_size_limit_is_the_programs_to_set(server: RedisServer, make: Make) -> None:
    async with make("orders", server.url, max_bytes=10) as orders:
        await orders.enqueue({"a": "123456789"})
        with pytest.raises(InvalidJobError, match="raise max_bytes"):
            await orders.enqueue({"a": "1234567890"})


@pytest.mark.parametrize(
    ("stream", "settings", "sentence"),
    [
        ("", {}, "stream is empty"),
        ("{orders}", {}, "only a hash tag"),
        ("orders", {"dedup_window": 59}, "Give seconds from 60"),
        ("orders", {"dedup_window": "60"}, "dedup_window cannot be"),
    ],
)
def test_settings_that_cannot_work_are_rejected(
    make: Make, stream: str, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        make(stream, NOWHERE, **settings)


# ---- many tasks, and several event loops


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> "Calls":
    calls = Calls()
    monkeypatch.setattr(ENQUEUE, "run", calls.make)
    return calls


class Calls:
    """Stands for the server. It answers on request, or fails."""

    def __init__(self) -> None:
        self.under_way = self.made = 0
        self.answer = anyio.Event()
        self.error: Exception | None = None

    async def make(self, _client: object, _keys: object, _words: object) -> list[int]:
        self.made += 1
        self.under_way += 1
        await self.answer.wait()
        self.under_way -= 1
        if self.error:
            raise self.error
        return [1]  # each call has one job


async def test_many_tasks_take_turns(calls: Calls) -> None:
    async with Producer("orders", NOWHERE) as orders, anyio.create_task_group() as tasks:
        for n in range(100):
            tasks.start_soon(orders.enqueue, {"n": n})
        await wait_until(lambda: calls.under_way == MAX_CALLS, "as many as may are under way")
        calls.answer.set()
    assert calls.made == 100


async def test_in_an_outage_nobody_waits_for_a_turn_of_his_own(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    now = [0.0]
    monkeypatch.setattr("workers.outbox.monotonic", lambda: now[0])
    calls.error = RedisConnectionError("gone")
    failures: list[UnreachableError] = []

    async def send(orders: Producer) -> None:
        try:
            await orders.enqueue({"n": 1})
        except UnreachableError as error:
            failures.append(error)

    async with Producer("orders", NOWHERE) as orders, anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(send, orders)
        await wait_until(lambda: calls.under_way == MAX_CALLS, "as many as may are under way")
        now[0] = 16.0
        calls.answer.set()
    assert (len(failures), calls.made) == (100, MAX_CALLS)


def test_a_producer_goes_on_in_another_event_loop_once_the_first_is_closed(server: RedisServer) -> None:
    orders = Producer("orders", server.url)

    async def send() -> int:
        async with orders, anyio.create_task_group() as tasks:
            for n in range(2 * MAX_CALLS):
                tasks.start_soon(orders.enqueue, {"n": n})
        return int(server.command("XLEN", "orders"))

    assert [asyncio.run(send()) for _ in range(3)] == [2 * MAX_CALLS * times for times in (1, 2, 3)]


async def test_a_producer_belongs_to_one_event_loop_at_a_time(server: RedisServer) -> None:
    async with Producer("orders", server.url) as orders:
        await orders.enqueue({"n": 1})
        with pytest.raises(ConfigurationError, match="belongs to another event loop"):
            await anyio.to_thread.run_sync(asyncio.run, orders.enqueue({"n": 2}))


# ---- once


@pytest.fixture(params=[None, 60], ids=["ready", "delayed"])
def delay(request: pytest.FixtureRequest) -> Iterator[float | None]:
    return request.param  # type: ignore[no-any-return]


async def jobs_there(client: Redis) -> int:
    return len(await entries(client)) + await delayed(client)


async def test_an_id_given_twice_is_one_job_also_from_two_producers(
    server: RedisServer, orders: AProducer, client: Redis, delay: float | None, make: Make
) -> None:
    ids: list[JobId] = []

    async def enqueue(enqueuer: AProducer) -> None:
        ids.append(await enqueuer.enqueue({"from": id(enqueuer)}, job_id="mail-1", delay=delay))

    async with make("orders", server.url) as other, anyio.create_task_group() as tasks:
        for enqueuer in (orders, other) * 20:
            tasks.start_soon(enqueue, enqueuer)
    assert await jobs_there(client) == 1
    assert ids == ["mail-1"] * 40
    assert [job_id.is_new for job_id in ids].count(True) == 1


async def test_each_job_of_many_says_whether_it_is_new(orders: AProducer, delay: float | None) -> None:
    await orders.enqueue({"n": 1}, job_id="b", delay=delay)
    jobs = [NewJob({"n": n}, job_id, delay) for n, job_id in enumerate(["a", "b", None, "a"])]
    a, b, unnamed, again = await orders.enqueue_many(jobs)
    assert (a, b, again) == ("a", "b", "a")
    assert (a.is_new, b.is_new, unnamed.is_new, again.is_new) == (True, False, True, False)
    assert json.loads(json.dumps([a])) == ["a"]
    assert not pickle.loads(pickle.dumps(b)).is_new  # noqa: S301


@pytest.mark.parametrize("job_id", [None, "mail-1"])
async def test_a_lost_reply_makes_no_second_job(
    server: RedisServer, client: Redis, proxy: StartProxy, delay: float | None, job_id: str | None, make: Make
) -> None:
    through = await proxy(server)
    await client.script_load(ENQUEUE.source)
    drop = through.drop_reply(runs(ENQUEUE))
    async with make("orders", through.url) as orders:
        enqueued = await orders.enqueue({"a": 1}, job_id=job_id, delay=delay)
        assert enqueued == (job_id or await _only_id(client))
        assert enqueued.is_new
    assert drop.happened
    assert await jobs_there(client) == 1


async def _only_id(client: Redis) -> str:
    state = await dump(client)
    if waiting := state.get("{orders}:scheduled"):
        return str(waiting[0][2])
    return str(state["orders"]["entries"][0][-1])


async def test_a_lost_reply_doubles_no_job(server: RedisServer, client: Redis, proxy: StartProxy, make: Make) -> None:
    through = await proxy(server)
    await client.script_load(ENQUEUE.source)
    drops = [through.drop_reply(runs(ENQUEUE)) for _ in range(2)]
    async with make("orders", through.url) as orders:
        await orders.enqueue_many([NewJob({"n": n}, delay=60 if n % 2 else None) for n in range(50)])
    assert all(drop.happened for drop in drops)
    assert await jobs_there(client) == 50


async def test_a_job_sent_in_an_outage_is_enqueued_later(server: RedisServer, client: Redis, proxy: StartProxy) -> None:
    through = await proxy(server)
    async with Producer("orders", through.url) as orders, anyio.create_task_group() as tasks:
        await orders.enqueue({"n": 1})
        await through.cut()
        tasks.start_soon(orders.enqueue, {"n": 2})
        await anyio.wait_all_tasks_blocked()
        await through.mend()
    assert len(await entries(client)) == 2


async def test_without_memory_redis_says_so_and_nothing_is_enqueued(orders: AProducer, client: Redis) -> None:
    await orders.enqueue({"n": 1})
    await client.config_set("maxmemory", "1")
    with pytest.raises(ResponseError, match=r"(?i)maxmemory|oom"):
        await orders.enqueue({"n": 2})
    await client.config_set("maxmemory", "0")
    assert len(await entries(client)) == 1


# ---- replicas


async def test_a_program_can_wait_until_a_replica_has_its_jobs(make: Make, start_server: StartServer) -> None:
    """As in ``docs/producers.md``: another connection that writes after the producer waits for its jobs, too."""
    master, replica = start_server(repl_diskless_sync_delay="0"), start_server()
    replica.command("REPLICAOF", "127.0.0.1", master.port)
    wait_until_here(lambda: b"connected" in replica.command("ROLE"), "it has what the master has")
    async with make("orders", master.url) as orders, commands_client(master.url) as redis:

        async def confirmed_by(patience_ms: int) -> int:
            confirming: Any = redis.pipeline(transaction=False)
            _, replicas = await confirming.incr("confirmed").wait(1, patience_ms).execute()
            return int(replicas)

        replica.pause()
        await orders.enqueue({"n": 1}, job_id="once")
        assert await confirmed_by(50) == 0
        replica.resume()
        assert await confirmed_by(60_000) == 1
        assert replica.command("XLEN", "orders") == 1
