"""Names of consumers are any bytes: what scripts write of them into the journal can be read all the same."""

from typing import Any

import pytest

from tests.scripts.scene import Scene
from tests.support.hostile import EVIL_BYTES
from workers.protocol.events import LifecycleEvent, decode_entry
from workers.protocol.messages import text

pytestmark = pytest.mark.anyio

NAMES = (b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", "日本".encode(), EVIL_BYTES)


async def _told(scene: Scene) -> list[LifecycleEvent]:
    entries: Any = await scene.client.xrange(scene.keys.journal)
    return [event for entry_id, flat in entries for event in decode_entry(entry_id, flat)]


@pytest.mark.parametrize("name", NAMES)
async def test_recovery_tells_of_every_consumer(scene: Scene, name: bytes) -> None:
    ids = [await scene.stalled(times=times, consumer=name) for times in (1, 2, 3, 1)]  # type: ignore[arg-type]
    await scene.client.xdel(scene.keys.stream, ids[-1])
    await scene.recover(*ids)
    assert [one.data["consumer"] for one in await _told(scene)] == [text(name)] * 4


@pytest.mark.parametrize("lease", NAMES)
async def test_a_refusal_tells_of_any_lease(scene: Scene, lease: bytes) -> None:
    await scene.client.set(scene.keys.lease, lease)
    assert (await scene.recover(await scene.stalled()))[0] == b"stale"
    assert [(one.event, one.data["lease"]) for one in await _told(scene)] == [("refused", text(lease))]
