"""The journal keeps its length, with any entries."""

import pytest

from tests.scripts.scene import Scene

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
