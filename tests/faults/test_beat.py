"""The beat of a group is recorded by workers, also idle ones, and by the holder of the lease."""

import pytest
from redis.asyncio import Redis

from tests.faults import scene
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("hurried")]

TIMES = 5


@pytest.fixture
async def group(client: Redis) -> None:
    """The group is there, with a visibility timeout of an hour, and its last beat was half of that ago."""
    await scene.create_group(client)
    await client.hset(scene.KEYS.settings, "visibility_ms", 3_600_000)


async def beats(client: Redis) -> None:
    """Wait until the beat was noted several times."""
    seen = set[object]()

    async def often_enough() -> bool:
        seen.add(await client.hget(scene.KEYS.settings, "beat"))
        return len(seen - {None}) > TIMES

    await wait_until(often_enough, "the beat is noted again and again", progress=lambda: len(seen))


@pytest.mark.usefixtures("group")
async def test_an_idle_worker_keeps_the_beat_where_there_is_no_replica(server: RedisServer, client: Redis) -> None:
    async with scene.running_worker(server.url, scene.Handler(), visibility_timeout=3_600):
        await beats(client)
        unbroken = await client.hget(scene.KEYS.settings, "unbroken")
        await beats(client)
    assert await client.hget(scene.KEYS.settings, "unbroken") == unbroken


@pytest.mark.usefixtures("group")
async def test_the_holder_keeps_the_beat_where_there_is_no_worker(server: RedisServer, client: Redis) -> None:
    async with scene.running_reaper(server.url, visibility_timeout=3_600):
        await beats(client)
