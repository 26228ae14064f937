"""The journal keeps its length, and can be read whatever the names in it."""

from typing import Any

import pytest

from tests.scripts.scene import Scene
from tests.support.hostile import EVIL_BYTES
from workers.protocol.events import LifecycleEvent, decode_entry
from workers.protocol.messages import text

pytestmark = pytest.mark.anyio

MAXLEN = 1_000
"""What `Scene.ack` asks for."""
NODE = 100
"""Entries that Redis gives up together (``stream-node-max-entries``), and after which a script trims again."""

ADD = "for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'n', n) end"


async def test_the_journal_is_trimmed(scene: Scene) -> None:
    lengths = list[int]()
    await scene.client.eval(ADD, 1, scene.keys.stream, 3 * MAXLEN // 2)
    await scene.client.xreadgroup(scene.keys.group, "w1", {scene.keys.stream: ">"})
    for number, row in enumerate(await scene.pending(), start=1):
        await scene.ack(row[0], number=number)
        if number % NODE == 0:
            lengths.append(await scene.client.xlen(scene.keys.journal))
    assert max(lengths) < MAXLEN + 2 * NODE
    assert lengths[-1] >= MAXLEN


# ---- names of consumers are any bytes

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
async def test_a_fenced_write_tells_of_any_lease(scene: Scene, lease: bytes) -> None:
    await scene.client.set(scene.keys.lease, lease)
    assert (await scene.recover(await scene.stalled()))[0] == b"fenced"
    assert [(one.event, one.data["lease"]) for one in await _told(scene)] == [("fenced", text(lease))]
