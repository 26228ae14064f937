"""A replica that runs and serves its status page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.service import Reaper
from reaper.web.serve import serving_health
from tests.faults.scene import create_group, reaper_settings
from tests.support.http import Reply, request
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


@dataclass
class Served:
    """A replica, and where its page is."""

    reaper: Reaper
    port: int

    async def get(self, path: str, **headers: str) -> Reply:
        """Fetch a path."""
        return await request(self.port, path, **headers)


@asynccontextmanager
async def served_replica(url: str, **changes: Any) -> AsyncIterator[Served]:
    """Run a replica that serves its groups, with its page on a free port."""
    settings = reaper_settings(url, **{"health_port": 0, "visibility_timeout": 30, "lease_ttl": 10, **changes})
    async with Reaper(settings) as reaper, serving_health(reaper) as port:
        assert port
        await wait_until(lambda: len(reaper.reports()) == len(settings.groups), "it serves or observes its groups")
        await wait_until(lambda: reaper.has_worked, "it is ready")
        yield Served(reaper, port)


@pytest.fixture
async def served(server: RedisServer, client: Redis) -> AsyncIterator[Served]:
    """A replica that holds orders/billing."""
    await create_group(client)
    async with served_replica(server.url) as replica:
        yield replica
