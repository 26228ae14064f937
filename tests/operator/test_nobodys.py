"""The output about jobs without an owner, given back by XNACK on a simulated Redis 8.8."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.operations.job_search import Place, find_job
from reaper.operations.snapshot import take_snapshot
from reaper.operations.state import GroupState
from reaper.settings import WatchedGroup
from tests.scripts.scene import Scene
from tests.support.simulated import simulated_server
from workers.protocol.connection import commands_client
from workers.protocol.keys import namespace_keys

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A group with a job that was given back, and one that somebody has in hand."""
    with simulated_server() as server:
        client: Redis = commands_client(server.url)
        prepared = Scene(client)
        await prepared.prepare()
        await prepared.set_settings(policy="in-place", recovery="reaper", visibility_ms=30_000, max_deliveries=3)
        ids = [await prepared.stalled(), await prepared.stalled(consumer="w2")]
        await prepared.recover(ids[0], policy="in-place")
        yield prepared
        await client.aclose()


async def state_of(scene: Scene) -> GroupState:
    """Return what the status goes by."""
    watched: Any = WatchedGroup(
        stream="orders", group="billing", redelivery="in-place", visibility_timeout=30, max_deliveries=3
    )
    [found] = (await take_snapshot(scene.client, namespace_keys("reaper"), [watched])).groups
    return found


async def test_it_is_counted_as_ready_and_as_nobodys_work(scene: Scene) -> None:
    found = await state_of(scene)
    # The simulated server keeps no LASTID of XCLAIM, so it has two unread entries besides.
    assert (found.main.ready.number, found.main.pending) == (2 + 1, 1)
    assert found.main.oldest_pending_ms is not None
    assert found.main.oldest_pending_ms >= 60_000


async def test_explain_finds_it_ready(scene: Scene) -> None:
    [(one, _, _), _] = await scene.pending()
    found = await find_job(scene.client, scene.keys, one)
    assert (found.place, found.owner, found.times_delivered) == (Place.READY, "", 1)
