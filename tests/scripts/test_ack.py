"""``ack``: what a refused acknowledgment leaves alone."""

from typing import Any

import pytest

from tests.scripts.scene import Scene

pytestmark = pytest.mark.anyio


async def test_only_what_is_acknowledged_is_deleted(scene: Scene) -> None:
    """The second entry is ready, perhaps again, so somebody has yet to run its job."""
    done, ready = await scene.stalled(), await scene.add()
    assert await scene.ack(done, ready, delete=True) == [1, 0]
    left: Any = await scene.client.xrange(scene.keys.stream)
    assert [one.decode() for one, _ in left] == [ready]
