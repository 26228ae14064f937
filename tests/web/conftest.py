"""A replica that runs and serves its status page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.service import Reaper
from reaper.web.serve import serving_health
from tests.faults.scene import create_group, reaper_settings
from tests.support.http import Reply, request
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

TOKEN = "0123456789abcdef-not-a-secret"  # noqa: S105 - of a page that lives for one test


@dataclass
class Served:
    """A replica, and where its page is."""

    reaper: Reaper
    port: int

    async def get(self, path: str, **headers: str) -> Reply:
        """Fetch a path."""
        return await request(self.port, path, **headers)

    async def post(self, path: str, body: str = "{}", **headers: str) -> Reply:
        """Act; the right token and type are sent unless others are given."""
        sent = {"Authorization": f"Bearer {TOKEN}", "Content_Type": "application/json", **headers}
        return await request(self.port, path, method="POST", body=body, **sent)


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
def token_file(tmp_path: Path) -> str:
    """A file with `TOKEN`."""
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return str(file)


@pytest.fixture
async def served(server: RedisServer, client: Redis) -> AsyncIterator[Served]:
    """A replica that holds orders/billing, with a page that changes nothing."""
    await create_group(client)
    async with served_replica(server.url) as replica:
        yield replica


@pytest.fixture
async def acting(server: RedisServer, client: Redis, token_file: str) -> AsyncIterator[Served]:
    """The same, with actions."""
    await create_group(client)
    async with served_replica(server.url, actions_token_file=token_file) as replica:
        yield replica
