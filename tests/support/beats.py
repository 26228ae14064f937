"""Lets a group look as if heartbeats had been served in it for long: recovery does not wait for its first timeout."""

from collections.abc import Iterable
from contextlib import suppress
from time import time

import redis
from redis.exceptions import RedisError

from workers.protocol.address import Topology
from workers.protocol.connection import read_address
from workers.protocol.keys import GroupKeys


def let_beat(url: str, groups: Iterable[GroupKeys]) -> None:
    """Write a beat that was never broken into group settings that have none. Does nothing where there is no server."""
    if read_address(url).topology is not Topology.SINGLE:
        return
    with suppress(RedisError, OSError), redis.Redis.from_url(url) as client:
        for keys in groups:
            client.hsetnx(keys.agreement, "unbroken", 1)
            client.hsetnx(keys.agreement, "beat", round(time() * 1000))
