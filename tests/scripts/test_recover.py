"""``recover``: entries that were given back where they are, and a missing permission."""

import pytest
from redis.exceptions import ResponseError

from tests.scripts.scene import Scene
from tests.support.servers import RedisServer
from workers.protocol.connection import commands_client

pytestmark = pytest.mark.anyio
GIVEN_BACK_MS = 10**11


@pytest.mark.parametrize(
    ("before", "times", "stays"),
    [(0, 1, True), (0, 2, True), (0, 3, False), (1, 1, True), (1, 2, False), (2, 1, False)],
)
async def test_in_place_a_job_is_ready_again_until_its_deliveries_are_used_up(
    scene: Scene, before: int, times: int, *, stays: bool
) -> None:
    """Those before this entry count, too."""
    entry = await scene.add("n", 1, "reaper.deliveries", before)
    await scene.deliver(entry, times=times, idle_ms=GIVEN_BACK_MS)
    await scene.recover(entry, policy="in-place")
    assert [one for one, _, _ in await scene.pending()] == [entry] * stays
    assert await scene.client.xlen(scene.keys.dead) == (not stays)


@pytest.mark.parametrize("command", ["xdel", "hdel", "xack", "xclaim"])
async def test_without_a_permission_nothing_is_copied(scene: Scene, server: RedisServer, command: str) -> None:
    """Otherwise each attempt would leave one more copy."""
    entry = await scene.stalled("n", 1)
    await scene.beats()
    await scene.set_settings(policy="stream", max_deliveries=3)
    before = await scene.state()
    await scene.client.execute_command("ACL", "SETUSER", "w", "reset", "on", ">x", "~*", "&*", "+@all", f"-{command}")
    async with commands_client(server.url.replace("redis://", "redis://w:x@")) as user:
        with pytest.raises(ResponseError, match=r"permission|can't run"):
            await Scene(user).recover(entry)
    assert await scene.state() == before
