import logging
import threading
from collections import Counter
from time import monotonic

import anyio
import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_events, user_fields
from tests.support.patience import PATIENCE_S, scaled
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import (
    KEYS,
    Holding,
    Runs,
    accept,
    blocked,
    consumers_of,
    dead_letters,
    enqueue,
    event_names,
    field_of,
    looks_at_pending,
    make_worker,
    number_of,
    pending_of,
    reports_of,
    running,
    wait_for_settled,
)
from workers import Job, Reject, Retry
from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import group_keys
from workers.protocol.messages import text
from workers.runtime.callbacks import Report

pytestmark = pytest.mark.anyio

POLICIES = ["stream", "retry-stream"]


async def give_back(_job: Job) -> None:
    raise Retry("not yet")


# ---- the end of a job


async def test_jobs_from_before_the_group_are_run_and_acknowledged(server: RedisServer, client: Redis) -> None:
    ran = Runs()
    await enqueue(client, *range(200))
    async with running(make_worker(server.url, ran)) as worker:
        await wait_for_settled(worker, 200)
    assert sorted(ran) == [(number, 1) for number in range(200)]
    assert await pending_of(client) == []
    assert await event_names(client) == ["acked"] * 200
    assert await client.xlen(KEYS.stream) == 200


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_failing_job_uses_its_deliveries_up(server: RedisServer, client: Redis, policy: str) -> None:
    deliveries = []

    async def handle(job: Job) -> None:
        deliveries.append((job.id, job.deliveries, number_of(job)))
        raise Retry("not yet")

    [job_id] = await enqueue(client, 7)

    async with running(make_worker(server.url, handle, redelivery=policy, max_deliveries=3)) as worker:
        await wait_for_settled(worker, 3)

    assert deliveries == [(job_id, 1, 7), (job_id, 2, 7), (job_id, 3, 7)]
    assert await event_names(client) == ["nacked", "nacked", "dead_lettered"]
    assert await client.xlen(KEYS.dead) == 1
    assert await pending_of(client) == []


@pytest.mark.parametrize("policy", POLICIES)
async def test_fields_reach_deliveries_and_dead_letters_unchanged(
    server: RedisServer, client: Redis, policy: str
) -> None:
    pairs = [(b"\xff\x00", b"\r\n"), (b"a", b"1"), (b"", b"\xc3("), (b"a", b"2"), (b"a", b"1")]
    seen = []

    async def handle(job: Job) -> None:
        seen.append(job.pairs)
        raise ValueError("\udce9")

    await client.execute_command("XADD", KEYS.stream, "*", *(part for pair in pairs for part in pair))

    async with running(make_worker(server.url, handle, redelivery=policy, max_deliveries=2)) as worker:
        await wait_for_settled(worker, 2)

    [(_, flat)] = await dead_letters(client)
    assert seen == [pairs, pairs]
    assert user_fields(flat) == pairs


async def test_a_rejected_job_is_a_dead_letter_at_once_with_a_report_and_a_log_line(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:

    async def handle(_job: Job) -> None:
        raise Reject("malformed")

    worker = make_worker(server.url, handle)
    reports = reports_of(worker, "dead_lettered")
    [job_id] = await enqueue(client, 1)
    async with running(worker):
        await wait_until(lambda: reports, "the dead letter is reported")

    [(dead_letter, flat)] = await dead_letters(client)
    assert field_of(flat, b"reaper.dead.reason") == b"malformed"
    facts = {
        "stream": "orders", "group": "billing", "job": job_id, "entry": job_id, "delivery": 1, "limit": 3,
        "consumer": worker.consumer, "reason": "malformed", "error": "", "dead_letter": dead_letter,
    }  # fmt: skip
    assert reports == [Report("dead_lettered", facts)]
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line.startswith(f"job dead-lettered: group=orders/billing job={job_id} dead_letter={dead_letter} ")
    assert f" limit=3 consumer={worker.consumer} reason=malformed" in line


async def test_dead_letters_can_be_read_by_an_ordinary_worker(server: RedisServer, client: Redis) -> None:
    letters = []

    async def look(job: Job) -> None:
        letters.append((job.fields, job.reserved[b"reaper.dead.reason"]))

    await enqueue(client, 5)
    async with running(make_worker(server.url, give_back, max_deliveries=1)) as worker:
        await wait_for_settled(worker, 1)
    async with running(make_worker(server.url, look, group_keys(KEYS.dead, "inspectors"))) as inspector:
        await wait_for_settled(inspector, 1)

    assert letters == [({b"n": b"5"}, b"max_deliveries")]


# ---- handlers


async def test_plain_functions_run_in_threads_as_many_as_there_are_slots(server: RedisServer, client: Redis) -> None:
    together = threading.Barrier(4, timeout=scaled(PATIENCE_S))

    def handle(_job: Job) -> None:
        together.wait()

    await enqueue(client, 1, 2, 3, 4)

    async with running(make_worker(server.url, handle, concurrency=4)) as worker:
        await wait_for_settled(worker, 4)

    assert worker.counts.acked == 4


async def test_no_more_jobs_are_read_and_run_than_there_are_slots(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    await enqueue(client, *range(10))
    async with running(make_worker(server.url, handler, concurrency=3)) as worker:
        await handler.has_started(3)
        for _ in range(20):
            await client.ping()
        assert (len(handler.started), len(await pending_of(client))) == (3, 3)
        handler.gate.set()
        await wait_for_settled(worker, 10)


# ---- the journal


async def test_a_settlement_is_journalled_with_all_that_a_report_needs(server: RedisServer, client: Redis) -> None:
    seconds, _ = await client.time()
    enqueued_ms = (seconds - 3_600) * 1_000  # a worker's idea of the server's time may lag behind by an answer's way
    job_id = text(await client.xadd(KEYS.stream, {"n": "1"}, f"{enqueued_ms}-1"))
    began = monotonic()

    async with running(make_worker(server.url, accept)) as worker:
        await wait_for_settled(worker, 1)

    [event] = await read_events(client, KEYS)
    data = dict(event.data)
    assert enqueued_ms <= data["delivered_ms"] <= event.at_ms + 1
    assert data.pop("ready_ms") == enqueued_ms
    assert data.pop("delivered_ms") <= data.pop("begun_ms") <= event.at_ms + 1
    assert 0 <= data.pop("run_ms") <= (monotonic() - began) * 1_000
    assert (event.event, event.job) == ("acked", job_id)
    assert data == {
        "group": "billing", "consumer": worker.consumer, "mode": "reaper", "entry": job_id, "delivery": 1,
        "generation": 0, "enqueued_ms": enqueued_ms,
    }  # fmt: skip


async def test_no_journal_is_written_if_it_is_off(server: RedisServer, client: Redis) -> None:
    await enqueue(client, 1, 2)

    async with running(make_worker(server.url, accept, journal=False)) as worker:
        await wait_for_settled(worker, 2)

    assert await client.exists(KEYS.journal) == 0


# ---- the group


async def test_two_groups_each_get_every_job_and_settle_on_their_own(server: RedisServer, client: Redis) -> None:
    audit = group_keys("orders", "audit")
    seen: dict[str, list[int]] = {"billing": [], "audit": []}

    async def bill(job: Job) -> None:
        seen["billing"].append(number_of(job))
        if job.deliveries == 1:
            raise Retry("once more")

    async def look(job: Job) -> None:
        seen["audit"].append(number_of(job))

    await enqueue(client, 1, 2, 3)
    billing = make_worker(server.url, bill, redelivery="retry-stream")
    auditing = make_worker(server.url, look, audit, redelivery="retry-stream")
    async with running(billing, auditing):
        await wait_for_settled(billing, 6)
        await wait_for_settled(auditing, 3)

    assert {group: sorted(numbers) for group, numbers in seen.items()} == {
        "billing": [1, 1, 2, 2, 3, 3],
        "audit": [1, 2, 3],
    }
    assert await client.xlen(KEYS.stream) == 3
    assert await client.xlen(KEYS.retry) == 0


async def test_policy_stream_holds_a_failed_job_where_a_second_group_would_see_its_copy(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await client.xgroup_create(KEYS.stream, "audit", "0", mkstream=True)
    [job_id] = await enqueue(client, 1)

    async with running(make_worker(server.url, give_back, refresh_s=0.05)) as worker:
        await wait_until(lambda: worker.counts.held, "the job is held")
        before = looks_at_pending(server)
        await wait_until(lambda: looks_at_pending(server) >= before + 2, "stock was taken again")

    assert (worker.counts.read, worker.counts.held) == (1, 1)
    assert await pending_of(client) == [(job_id, worker.consumer, 1)]
    assert "Set redelivery = 'retry-stream'" in caplog.text


async def test_a_lone_embedded_worker_recovers_what_it_could_not_settle(server: RedisServer, client: Redis) -> None:
    await client.xgroup_create(KEYS.stream, "audit", "0", mkstream=True)
    ids, runs = await enqueue(client, 1, 2), Counter[int]()

    async def run(job: Job) -> None:
        runs[number_of(job)] += 1
        if runs[number_of(job)] == 1:
            raise Retry  # it cannot be copied, because the other group would see the copy

    worker = make_worker(server.url, run, recovery="embedded", visibility_timeout=0.5)
    async with running(worker):
        await wait_for_settled(worker, 4)

    assert (worker.counts.held, worker.counts.acked, runs) == (2, 2, Counter({1: 2, 2: 2}))
    assert await pending_of(client) == []
    acked = [event for event in await read_events(client, KEYS) if event.event == "acked"]
    assert sorted((event.data["entry"], event.data["delivery"]) for event in acked) == [(one, 2) for one in ids]


async def test_a_retry_stream_that_appears_later_is_noticed(server: RedisServer, client: Redis) -> None:
    async with running(make_worker(server.url, accept, refresh_s=0.05)) as worker:
        await client.xadd(KEYS.retry, {"n": 1})
        await wait_for_settled(worker, 1)

    assert worker.counts.acked == 1


async def test_the_group_settings_count_and_the_difference_is_loud(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await client.hset(KEYS.settings, mapping={"max_deliveries": "1", "policy": "stream"})
    await enqueue(client, 1)

    worker = make_worker(server.url, give_back, name="w", max_deliveries=5, refresh_s=0.05)
    async with running(worker):
        await wait_for_settled(worker, 1)
        word = await client.hget(KEYS.settings, f"registration:{worker.consumer}")

    assert worker.counts.dead_lettered == 1
    assert text(word or b"").endswith(",worker w: max_deliveries 1 is in force, 5 is set")
    assert not await client.hexists(KEYS.settings, f"registration:{worker.consumer}"), "it has taken it back"
    assert caplog.text.count("max_deliveries 1 is in force, 5 is set") == 1


@pytest.mark.parametrize("groups", [1, 2])
async def test_settled_entries_are_deleted_on_request(server: RedisServer, client: Redis, groups: int) -> None:
    if groups == 2:
        await client.xgroup_create(KEYS.stream, "audit", "0", mkstream=True)
    await enqueue(client, *range(10))
    async with running(make_worker(server.url, accept, delete_settled=True)) as worker:
        await wait_for_settled(worker, 10)
    assert await client.xlen(KEYS.stream) == (0 if groups == 1 else 10)


# ---- beginning and end


async def test_a_worker_that_ends_leaves_no_consumer_behind(server: RedisServer, client: Redis) -> None:
    await enqueue(client, 1)

    async with running(make_worker(server.url, accept)) as worker:
        await wait_for_settled(worker, 1)
        assert await consumers_of(client) == [worker.consumer]

    assert await consumers_of(client) == []


async def test_two_processes_on_one_host_are_two_consumers(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    await enqueue(client, 1, 2)
    workers = [make_worker(server.url, handler, concurrency=1) for _ in range(2)]
    async with running(*workers):
        await handler.has_started(2)
        held = await pending_of(client)
        handler.gate.set()

    assert sorted(consumer for _, consumer, _ in held) == sorted(worker.consumer for worker in workers)
    assert {worker.consumer.rpartition("~")[0] for worker in workers} == {workers[0].settings.base_name}


async def test_stopping_lets_running_jobs_end_and_reads_no_more(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    await enqueue(client, 1)
    async with running(make_worker(server.url, handler)) as worker:
        await handler.has_started()
        await wait_until(lambda: blocked(client), "the worker reads")
        worker.stop()
        await wait_until(lambda: none_blocked(client), "the worker has ended its read")
        await enqueue(client, 2)
        handler.gate.set()

    assert (worker.counts.acked, worker.counts.read) == (1, 1)
    assert await pending_of(client) == []


async def test_a_cancelled_worker_still_settles_what_has_been_done(server: RedisServer, client: Redis) -> None:
    done = 0

    async def handle(_job: Job) -> None:
        nonlocal done
        done += 1
        if done == 40:
            tasks.cancel_scope.cancel()

    await enqueue(client, *range(40))
    worker = make_worker(server.url, handle)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)

    assert (worker.counts.acked, await pending_of(client)) == (40, [])


async def none_blocked(client: Redis) -> bool:
    return not await blocked(client)


async def test_a_worker_can_run_again_but_not_twice_at_once(server: RedisServer, client: Redis) -> None:
    worker = make_worker(server.url, accept)
    consumers = set()
    for number in range(2):
        await enqueue(client, number)
        async with running(worker):
            with pytest.raises(ConfigurationError, match="already running"):
                await worker.run()
            await wait_for_settled(worker, 1)
            consumers.add(worker.consumer)

    assert len(consumers) == 2
