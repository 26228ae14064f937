"""A worker reads the group settings, and registers itself there."""

from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.extending import extending, extensions, steal
from tests.workers.scene import KEYS, Holding, accept, enqueue, make_worker, process_of, running
from workers import Worker
from workers.protocol.messages import Redelivery

pytestmark = pytest.mark.anyio

SELDOM: dict[str, Any] = {"refresh_s": 30 * 86_400}
"""A worker that looks again only where something tells it to."""


async def set_visibility(client: Redis, visibility_s: float) -> None:
    """Let a leader have come, or have other settings now."""
    await client.hset(KEYS.settings, "visibility_ms", str(round(visibility_s * 1000)))


def goes_by(worker: Worker) -> float:
    """Return the visibility timeout that the worker goes by, in seconds."""
    return process_of(worker)._context.membership.group_settings.visibility_timeout.total_seconds()


async def test_a_worker_writes_the_group_settings_that_are_missing(server: RedisServer, client: Redis) -> None:
    """The scripts that settle need group settings. A leader that comes later changes them as any others."""
    worker = make_worker(server.url, accept, refresh_s=0.05)
    async with running(worker):
        assert goes_by(worker) == 30
        in_force = await client.hmget(KEYS.settings, "policy", "visibility_ms", "max_deliveries", "recovery")
        assert in_force == [b"stream", b"30000", b"3", b"reaper"]
        await set_visibility(client, 7)
        await client.hset(KEYS.settings, "policy", "in-place")
        await wait_until(lambda: goes_by(worker) == 7, "it has looked again")
        membership = process_of(worker)._context.membership
        await wait_until(lambda: membership.group_settings.redelivery is Redelivery.IN_PLACE, "and gives back so")


async def test_a_joining_that_failed_is_tried_again_soon(server: RedisServer, client: Redis) -> None:
    worker = make_worker(server.url, accept, visibility_timeout=30, **SELDOM)
    async with running(worker):
        await client.delete(KEYS.settings)
        await client.set(KEYS.settings, "in the way")
        process_of(worker)._context.membership.join_again()

        async def has_failed() -> bool:
            calls: Any = await client.info("errorstats")
            return "errorstat_WRONGTYPE" in calls

        await wait_until(has_failed, "it cannot join")
        await client.delete(KEYS.settings)
        await wait_until(lambda: client.hexists(KEYS.settings, "visibility_ms"), "it has joined again")


@extending
async def test_a_rejected_extension_makes_the_worker_read_the_settings(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    worker = make_worker(server.url, handler, visibility_timeout=3_600, **SELDOM)
    [job] = await enqueue(client, 1)
    async with running(worker):
        await handler.has_started()
        await set_visibility(client, 900)
        await steal(client, job)
        await wait_until(lambda: goes_by(worker) == 900, "the worker knows better")
        handler.gate.set()


async def test_a_shorter_timeout_extends_all_deliveries_at_once(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    worker = make_worker(server.url, handler, visibility_timeout=3_600, **SELDOM)
    jobs = await enqueue(client, 1, 2, 3)
    async with running(worker):
        await handler.has_started(3)
        for held in process_of(worker).in_hand()[:2]:
            held.proven = held.proven - 600  # which is soon enough by the timeout that the worker knows
        await set_visibility(client, 900)
        process_of(worker)._context.membership.join_again()

        await wait_until(
            lambda: sorted(set(extensions())) == jobs,
            "all are extended, also what was proven soon enough by the former timeout",
        )
        handler.gate.set()
