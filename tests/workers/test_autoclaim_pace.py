"""How often an embedded worker looks for stalled deliveries."""

from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from tests.faults.scene import Handler, create_group, running_worker
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.calls.group_moves import GroupMoves

pytestmark = pytest.mark.anyio

VISIBILITY_S = 0.5


async def test_a_worker_with_nothing_to_recover_looks_about_once_in_a_visibility_timeout(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, recover_page = 0, GroupMoves.recover_page

    async def counted(*words: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return await recover_page(*words, **more)

    monkeypatch.setattr(GroupMoves, "recover_page", counted)
    await create_group(client)
    async with running_worker(server.url, Handler(), recovery="embedded", visibility_timeout=VISIBILITY_S):
        began = anyio.current_time()
        await wait_until(lambda: looks >= 4, "it has looked four times")
        # A busy machine makes it look less often, never more.
        assert anyio.current_time() - began > 3 * VISIBILITY_S * 0.9
