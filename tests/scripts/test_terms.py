"""A delivery is judged by the former values of its group, until every worker has read the lower ones."""

from typing import Any

import pytest

from tests.scripts.scene import Scene

pytestmark = pytest.mark.anyio


async def lowered(scene: Scene, *, for_ms: int = 35_000, **former: int) -> None:
    """Let the group have had these values until a moment ago."""
    await scene.set_settings(former_left=max(0, for_ms), **former)


async def due_in_ms(scene: Scene, entry_id: str, **values: Any) -> int:
    """Return in how many ms an entry is due, or 0 if it was recovered."""
    reply = await scene.recover(entry_id, **{"visibility_ms": 4_000, **values})
    assert reply[0] == b"ok"
    return int(reply[2][1]) if reply[2] else 0


@pytest.mark.parametrize("consumer", ["plain", "w1~0123456789ab"])
async def test_the_former_timeout_counts_until_workers_have_read_the_shorter_one(scene: Scene, consumer: str) -> None:
    entry_id = await scene.add()
    await scene.deliver(entry_id, consumer=consumer, idle_ms=20_000)
    await lowered(scene, former_visibility_ms=30_000)
    assert 5_000 < await due_in_ms(scene, entry_id) <= 10_000
    await lowered(scene, former_visibility_ms=30_000, for_ms=-1)
    assert await due_in_ms(scene, entry_id) == 0


async def test_a_longer_timeout_counts_at_once(scene: Scene) -> None:
    entry_id = await scene.add()
    await scene.deliver(entry_id, idle_ms=20_000)
    await lowered(scene, former_visibility_ms=4_000)
    assert await due_in_ms(scene, entry_id, visibility_ms=30_000) > 0


@pytest.mark.parametrize(("for_ms", "is_dead"), [(35_000, False), (-1, True)])
async def test_no_job_is_given_up_by_a_limit_that_is_too_new(scene: Scene, for_ms: int, is_dead: bool) -> None:
    await lowered(scene, former_max_deliveries=5, for_ms=for_ms)
    await scene.recover(await scene.doomed(times=2), max_deliveries=2)
    assert ("{orders}:dead:billing" in await scene.state()) == is_dead


async def test_an_embedded_worker_judges_by_the_former_timeout_as_well(scene: Scene) -> None:
    await scene.set_settings(policy="stream", visibility_ms=4_000, max_deliveries=3, recovery="embedded")
    ids = [await scene.add() for _ in range(4)]
    for entry_id, idle_ms in zip(ids, (20_000, 40_000, 20_000, 40_000), strict=True):
        await scene.deliver(entry_id, idle_ms=idle_ms)
    await lowered(scene, former_visibility_ms=30_000)
    reply = await scene.walk(consumer="w2")
    assert [owner for _, owner, _ in await scene.pending()] == ["w1", "w2", "w1", "w2"]
    assert 5_000 < reply[2][1] <= 10_000, "when the next one is due"
