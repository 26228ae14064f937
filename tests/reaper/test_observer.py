"""The reports of an observer, which changes no key."""

import pytest
from redis.asyncio import Redis

from reaper.recovery.source_watch import overdue_now
from tests.scripts.scene import Scene
from workers.protocol.messages import Pending

pytestmark = pytest.mark.anyio


async def test_it_sees_what_is_still_pending_and_leaves_everything_as_it_is(client: Redis) -> None:
    scene = Scene(client)
    await scene.prepare()
    first = await scene.stalled(consumer="w1", times=2)
    settled = await scene.stalled()
    other = await scene.stalled(consumer="w2")
    await client.xack("orders", "billing", settled)
    before = await scene.state()

    asked = [one.encode() for one in (first, settled, other)]
    seen = await overdue_now(client, "orders", "billing", asked)

    idle = {entry_id: row.idle_ms for entry_id, row in seen.items()}
    assert seen == {
        asked[0]: Pending(asked[0], b"w1", idle[asked[0]], 2),
        asked[2]: Pending(asked[2], b"w2", idle[asked[2]], 1),
    }
    assert min(idle.values()) >= 60_000
    assert await scene.state() == before


async def test_nothing_asked_is_nothing_seen(client: Redis) -> None:
    assert await overdue_now(client, "orders", "billing", []) == {}
