"""The last possible entry ID at the end of a page: Redis rejects a range that begins behind it."""

import pytest

from tests.scripts.scene import Scene
from workers.protocol.messages import LAST_ENTRY_ID

pytestmark = pytest.mark.anyio

LAST = LAST_ENTRY_ID.decode()


async def held(scene: Scene, *entry_ids: str) -> None:
    """Add these entries, which consumer w1 has stalled with."""
    for entry_id in entry_ids:
        await scene.client.execute_command("XADD", "orders", entry_id, "n", 1)
        await scene.deliver(entry_id, consumer="w1")


async def test_a_page_that_ends_with_it_is_the_last_one_to_a_worker_that_recovers(scene: Scene) -> None:
    await scene.set_settings(recovery="embedded")
    await held(scene, "1-0", LAST)
    ok, _, cursor, *_ = await scene.walk(page=2, policy="retry-stream")
    assert (ok, cursor) == (b"ok", b"")
