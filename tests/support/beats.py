"""Lets a group look as if heartbeats had been served in it for long: recovery does not wait for its first timeout."""

from collections.abc import Iterable
from contextlib import suppress
from time import time
from urllib.parse import urlsplit

import redis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from workers.protocol.address import Topology
from workers.protocol.connection import read_address
from workers.protocol.keys import GroupKeys

PATIENCE_S = 5.0


async def let_beat(client: Redis, *groups: GroupKeys) -> None:
    """Write a beat that was never broken into group settings that have none."""
    for keys in groups:
        await client.hsetnx(keys.settings, "unbroken", 1)
        await client.hsetnx(keys.settings, "beat", round(time() * 1000))


async def let_beat_at(url: str, groups: Iterable[GroupKeys]) -> None:
    """Do so at an address, as its default user. Does nothing where nobody answers, or permission is denied."""
    if read_address(url).topology is not Topology.SINGLE:
        return
    host, port = _address(url)
    async with Redis(host=host, port=port, socket_timeout=PATIENCE_S, socket_connect_timeout=PATIENCE_S) as client:
        with suppress(RedisError, OSError):
            await let_beat(client, *groups)


def let_beat_of(url: str, groups: Iterable[GroupKeys]) -> None:
    """Do the same without an event loop: at a server of its own, and at no proxy of the test's."""
    host, port = _address(url)
    with redis.Redis(host=host, port=port) as client:
        for keys in groups:
            client.hsetnx(keys.settings, "unbroken", 1)
            client.hsetnx(keys.settings, "beat", round(time() * 1000))


def _address(url: str) -> tuple[str, int]:
    where = urlsplit(url)
    return where.hostname or "", where.port or 6379
