"""Names of consumers are any bytes: what scripts write of them into the journal is valid JSON all the same."""

import json
from typing import Any

import pytest

from tests.scripts.scene import Scene
from tests.support.hostile import EVIL_BYTES
from workers.protocol.events import decode_entry
from workers.protocol.messages import text

pytestmark = pytest.mark.anyio

NAMES = (b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", "日本".encode(), EVIL_BYTES)


async def _told(scene: Scene) -> list[dict[str, Any]]:
    """Return what the journal holds, read as strictly as can be."""
    entries: Any = await scene.client.xrange(scene.keys.journal)
    written = [dict(zip(flat[::2], flat[1::2], strict=True))[b"data"] for _, flat in entries]
    told = [json.loads(data.decode("utf-8", "strict")) for data in written]
    assert told == [event.data for entry_id, flat in entries for event in decode_entry(entry_id, flat)]
    return told


@pytest.mark.parametrize("name", NAMES)
async def test_recovery_tells_of_every_consumer(scene: Scene, name: bytes) -> None:
    ids = [await scene.stalled(times=times, consumer=name) for times in (1, 2, 3, 1)]  # type: ignore[arg-type]
    await scene.client.xdel(scene.keys.stream, ids[-1])
    await scene.recover(*ids)
    told = await _told(scene)
    assert [one["consumer"] for one in told] == [text(name)] * 4


@pytest.mark.parametrize("name", NAMES)
async def test_embedded_recovery_tells_of_every_consumer(scene: Scene, name: bytes) -> None:
    await scene.agree(recovery="embedded")
    await scene.client.delete(scene.keys.fence)
    for times in (1, 2, 3):
        await scene.stalled(times=times, consumer=name)  # type: ignore[arg-type]
    await scene.autoclaim(room=0)
    told = await _told(scene)
    assert {one["consumer"] for one in told} == {text(name)}


@pytest.mark.parametrize("fence", NAMES)
async def test_a_refusal_tells_of_any_fence(scene: Scene, fence: bytes) -> None:
    await scene.client.set(scene.keys.fence, fence)
    assert (await scene.recover(await scene.stalled()))[0] == b"stale"
    assert [one["fence"] for one in await _told(scene)] == [text(fence)]


@pytest.mark.parametrize("name", NAMES)
async def test_an_adoption_tells_of_every_consumer(scene: Scene, name: bytes) -> None:
    for times in (1, 3):
        await scene.stalled(times=times, consumer=name)  # type: ignore[arg-type]
    lost = await scene.stalled(consumer=name)  # type: ignore[arg-type]
    await scene.client.xdel(scene.keys.stream, lost)
    await scene.adopt(from_consumer=name)  # type: ignore[arg-type]
    told = await _told(scene)
    assert told
    assert text(name) in {one["consumer"] for one in told}
