"""The journal stays as long as it may be, whatever is written into it."""

import pytest

from tests.scripts.scene import Scene

pytestmark = pytest.mark.anyio

MAXLEN = 1_000
"""What `Scene.ack` asks for."""
NODE = 100
"""Entries that Redis gives up together (``stream-node-max-entries``), and after which a script trims again."""

ADD = "for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'n', n) end"


@pytest.mark.parametrize("batch", [30, 150, 800])
async def test_the_journal_is_trimmed_however_many_events_a_call_writes(scene: Scene, batch: int) -> None:
    lengths, number = list[int](), 0
    for _ in range(2_400 // batch):
        await scene.client.eval(ADD, 1, scene.keys.stream, batch)
        await scene.client.xreadgroup(scene.keys.group, "w1", {scene.keys.stream: ">"}, count=batch)
        for row in await scene.pending():
            number += 1
            await scene.ack(row[0], number=number)
        lengths.append(await scene.client.xlen(scene.keys.journal))
    assert max(lengths) < MAXLEN + 2 * NODE
    assert lengths[-1] >= MAXLEN
