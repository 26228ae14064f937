"""XNACK (Redis 8.8) on a simulated server, since no real one is at hand; and what that does otherwise than documented.

All that `test_in_place` and `test_nack` say is said of it, too: their tests are collected here once more. On a server
of that version which is at hand (``STREAM_REAPER_TEST_REDIS``) they run by themselves.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.scripts import test_in_place, test_nack
from tests.scripts.scene import Scene
from tests.scripts.test_nack import claim, nack, nacked
from tests.support.simulated import simulated_server
from workers.protocol.connection import commands_client
from workers.protocol.keys import NOBODY

pytestmark = pytest.mark.anyio

DEVIATES = {
    "test_what_was_copied_goes_on_in_place": "its Lua has no cmsgpack",
    "test_a_group_that_was_made_again_by_a_stranger_is_known_whatever_is_ready_there": "a consumer is as idle there as "
    "what it holds",
    "test_to_ask_whether_xnack_may_be_used_refuses_and_logs_nothing": "it counts no errors",
    "test_it_is_nobodys_work_in_flight": "an error that its scripts meet bears no code",
    "test_no_consumer_without_a_name_is_ever_made": "it makes one of what nobody holds, whenever a consumer reads",
    "test_nor_by_workers_that_recover_by_themselves": "it makes one of what nobody holds, whenever a consumer reads",
}
"""Of the tests that are collected once more: those that its deviations fail, and which."""
for _module in (test_in_place, test_nack):
    globals().update({name: value for name, value in vars(_module).items() if name.startswith("test_")})


class SimulatedScene(Scene):
    """It does not know ``LASTID``."""

    async def deliver(self, *ids: str, stream: str | None = None, **how: Any) -> None:
        """As that of `Scene`."""
        await super().deliver(*ids, stream=stream, **how)
        for one in ids:
            await self.client.xgroup_setid(stream or self.keys.stream, self.keys.group, one)


@pytest.fixture
async def client() -> AsyncIterator[Redis]:
    """A commands client of a simulated server of the test's own."""
    with simulated_server() as url:
        redis = commands_client(url)
        yield redis
        await redis.aclose()


@pytest.fixture
async def scene(client: Redis, request: pytest.FixtureRequest) -> Scene:
    """As everywhere, on that server."""
    why = DEVIATES.get(request.node.originalname)
    if why:
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    prepared = SimulatedScene(client)
    await prepared.prepare()
    assert prepared.ready_owner == NOBODY
    if request.node.originalname in vars(test_in_place):
        await test_in_place.agree(prepared)
    return prepared


# --- what it does otherwise than documented: once one is mended, the test says so -----------------------------------


def deviates(what: str) -> pytest.MarkDecorator:
    """Mark a test of what a server is documented to do, which the simulated one does not."""
    return pytest.mark.xfail(reason=what, strict=True, raises=(AssertionError, RedisError))


@deviates("`LASTID` is ignored")
async def test_a_claim_moves_the_group_on(client: Redis) -> None:
    plain = Scene(client)
    await plain.prepare()
    await plain.stalled()
    assert await claim(plain, "w9") == []


@deviates("what was given back is taken by ID, not in the order in which it was given back")
async def test_what_was_given_back_first_is_taken_first(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(3)]
    for one in reversed(ids):
        await nack(scene, one)
    assert [one for one, _, _ in await claim(scene)] == ids[::-1]


@deviates("the count runs over")
async def test_a_count_saturates(scene: Scene) -> None:
    one = await nacked(scene, mode="FATAL")
    await claim(scene)
    rows: Any = await scene.client.execute_command("XPENDING", "orders", "billing", one, one, 1)
    assert rows[0][3] == 2**63 - 1


@deviates("scripts cannot ask for rights")
async def test_scripts_may_ask_for_rights(client: Redis) -> None:
    asked = "return redis.acl_check_cmd('XNACK', 's', 'g', 'FAIL', 'IDS', '1', '0-0') and 1 or 0"
    assert await client.execute_command("EVAL", asked, 0) == 1
