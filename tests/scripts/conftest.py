"""The scene of the script tests."""

import pytest
from redis.asyncio import Redis

from tests.scripts.scene import Scene


@pytest.fixture
async def scene(client: Redis) -> Scene:
    """A stream ``orders`` with a group ``billing``. The replica alice holds its lease in term 7."""
    prepared = Scene(client)
    await prepared.prepare()
    return prepared
