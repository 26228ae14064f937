"""What is given back where it is, seen by a read that blocks and does not see it, whatever became of the notice.

Reads block for ever here: nothing but a wake ends them.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from tests.support.servers import RedisServer
from tests.support.tiers import WITH_CLAIM
from tests.support.waiting import wait_until
from tests.workers.scene import KEYS, blocked, enqueue, make_worker, running
from workers import Job
from workers.protocol.keys import READY_CONSUMER

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.only_on(*WITH_CLAIM),
    pytest.mark.contract,
    pytest.mark.usefixtures("for_ever"),
]

IN_PLACE: Any = {"policy": "in-place", "visibility_ms": "30000", "max_deliveries": "3", "recovery": "reaper"}


@asynccontextmanager
async def stalled_beside_a_worker(server: RedisServer, client: Redis) -> AsyncIterator[str]:
    """Run a worker that blocks in its read beside a job that another one has; at the end the worker has run that job.

    Gives the entry's ID.
    """
    await client.xgroup_create(KEYS.stream, KEYS.group, "0", mkstream=True)
    [entry_id] = await enqueue(client, 1)
    await client.xreadgroup(KEYS.group, "gone", {KEYS.stream: ">"})
    run = list[str]()

    async def handle(job: Job) -> None:
        run.append(job.id)

    async with running(make_worker(server.url, handle, visibility_timeout=30, refresh_s=3_600)):
        await wait_until(lambda: blocked(client), "the worker blocks in its read")
        yield entry_id
        await wait_until(lambda: run == [entry_id], "the job was run, once")


def lay_aside(commands: Pipeline, entry_id: str) -> None:
    """Have it given back, and nobody told, as part of a transaction: nothing comes in between."""
    commands.execute_command(
        "XCLAIM", KEYS.stream, KEYS.group, READY_CONSUMER, 0, entry_id,
        "IDLE", 4_000_000_000, "RETRYCOUNT", 1, "JUSTID",
    )  # fmt: skip


async def _is_heard(client: Redis) -> bool:
    return bool((await client.pubsub_numsub(KEYS.notes))[0][1])


async def test_a_notice_ends_a_read_that_blocks(server: RedisServer, client: Redis) -> None:
    await client.hset(KEYS.agreement, mapping=IN_PLACE)
    async with stalled_beside_a_worker(server, client) as entry_id:
        await wait_until(lambda: _is_heard(client), "the worker listens")
        async with client.pipeline() as commands:
            lay_aside(commands, entry_id)
            commands.publish(KEYS.notes, "ready")
            await commands.execute()


async def test_what_is_given_back_while_the_listener_has_no_connection_is_run_once_it_has(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.runtime.notices.RECONNECT_S", 0.01)
    await client.hset(KEYS.agreement, mapping=IN_PLACE)
    async with stalled_beside_a_worker(server, client) as entry_id:
        await wait_until(lambda: _is_heard(client), "the worker listens")
        async with client.pipeline() as commands:
            commands.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            lay_aside(commands, entry_id)
            commands.publish(KEYS.notes, "ready")
            *_, heard_by = await commands.execute()
        assert heard_by == 0


async def test_what_is_given_back_before_a_worker_knows_that_it_would_be_is_run_once_it_does(
    server: RedisServer, client: Redis
) -> None:
    """The read that blocks meanwhile is one without CLAIM."""
    async with stalled_beside_a_worker(server, client) as entry_id:
        assert not await _is_heard(client)
        async with client.pipeline() as commands:
            lay_aside(commands, entry_id)
            commands.hset(KEYS.agreement, mapping=IN_PLACE)
            await commands.execute()


async def test_what_is_given_back_while_all_slots_are_taken_is_run_by_the_next_read(
    server: RedisServer, client: Redis
) -> None:
    """The notice finds nothing to end."""
    await client.hset(KEYS.agreement, mapping=IN_PLACE)
    await client.xgroup_create(KEYS.stream, KEYS.group, "0", mkstream=True)
    [stalled] = await enqueue(client, 1)
    await client.xreadgroup(KEYS.group, "gone", {KEYS.stream: ">"})
    gate, run = anyio.Event(), list[str]()

    async def handle(job: Job) -> None:
        run.append(job.id)
        await gate.wait()

    async with running(make_worker(server.url, handle, concurrency=1)):
        await wait_until(lambda: _is_heard(client), "the worker listens")
        [taken] = await enqueue(client, 2)
        await wait_until(lambda: run == [taken], "its only slot is taken")
        async with client.pipeline() as commands:
            lay_aside(commands, stalled)
            commands.publish(KEYS.notes, "ready")
            await commands.execute()
        gate.set()
        await wait_until(lambda: run == [taken, stalled], "the other one was run, too")
