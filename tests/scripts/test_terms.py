"""By what a delivery is judged: by what its group had before, until every worker has read the lower values."""

from typing import Any

import pytest

from tests.scripts.scene import Scene, item

pytestmark = pytest.mark.anyio

READY, DEAD, NOT_DUE = 1, 3, 4


async def lowered(scene: Scene, *, for_ms: int = 35_000, **former: int) -> None:
    """Let the group have had these values until a moment ago."""
    await scene.agree(former_until=await scene.now_ms() + for_ms, **former)


async def recovered(scene: Scene, entry_id: str, **values: Any) -> tuple[int, int]:
    """Return what became of an entry: code, and in how many ms it is due."""
    reply = await scene.recover(entry_id, **{"visibility_ms": 4_000, **values})
    assert reply[0] == b"ok"
    return reply[1][0], reply[1][1] if reply[1][0] == NOT_DUE else 0


@pytest.mark.parametrize("consumer", ["plain", "w1.0123456789ab"])
async def test_the_former_timeout_counts_until_workers_have_read_the_shorter_one(scene: Scene, consumer: str) -> None:
    entry_id = await scene.add()
    await scene.deliver(entry_id, consumer=consumer, idle_ms=20_000)
    await lowered(scene, former_visibility_ms=30_000)
    code, left_ms = await recovered(scene, entry_id)
    assert (code, 5_000 < left_ms <= 10_000) == (NOT_DUE, True)
    await lowered(scene, former_visibility_ms=30_000, for_ms=-1)
    assert (await recovered(scene, entry_id))[0] == READY


async def test_it_is_due_when_the_former_timeout_counts_no_more(scene: Scene) -> None:
    entry_id = await scene.add()
    await scene.deliver(entry_id, idle_ms=2_000)
    await lowered(scene, former_visibility_ms=3_600_000, for_ms=20_000)
    assert 15_000 < (await recovered(scene, entry_id))[1] <= 20_000
    await lowered(scene, former_visibility_ms=3_600_000, for_ms=1)
    assert 1_000 < (await recovered(scene, entry_id))[1] <= 2_000, "and not before the shorter one is over"


async def test_a_longer_timeout_counts_at_once(scene: Scene) -> None:
    entry_id = await scene.add()
    await scene.deliver(entry_id, idle_ms=20_000)
    await lowered(scene, former_visibility_ms=4_000)
    assert (await recovered(scene, entry_id, visibility_ms=30_000))[0] == NOT_DUE


async def test_without_a_former_timeout_the_groups_counts_at_once(scene: Scene) -> None:
    entry_id = await scene.add()
    await scene.deliver(entry_id, idle_ms=20_000)
    await lowered(scene)
    assert (await recovered(scene, entry_id))[0] == READY


@pytest.mark.parametrize(("for_ms", "code"), [(35_000, READY), (-1, DEAD)])
async def test_nothing_is_given_up_by_a_limit_that_its_worker_may_not_know(
    scene: Scene, for_ms: int, code: int
) -> None:
    await lowered(scene, former_max_deliveries=5, for_ms=for_ms)
    assert (await recovered(scene, await scene.doomed(times=2), max_deliveries=2))[0] == code


@pytest.mark.parametrize(("for_ms", "is_dead"), [(35_000, False), (-1, True)])
async def test_a_nack_counts_against_the_limit_that_the_worker_may_know(
    scene: Scene, for_ms: int, is_dead: bool
) -> None:
    await scene.agree(policy="stream", max_deliveries=2)
    await lowered(scene, former_max_deliveries=3, for_ms=for_ms)
    await scene.settle(item(await scene.stalled(times=2), "nack", times=2))
    assert ("{orders}:dead:billing" in await scene.state()) == is_dead


async def embedded(scene: Scene, *, limit: int = 3) -> None:
    await scene.agree(policy="stream", visibility_ms=4_000, max_deliveries=limit, recovery="embedded")


async def test_an_embedded_worker_judges_by_the_former_timeout_as_well(scene: Scene) -> None:
    await embedded(scene)
    ids = [await scene.add() for _ in range(4)]
    for entry_id, idle_ms in zip(ids, (20_000, 40_000, 20_000, 40_000), strict=True):
        await scene.deliver(entry_id, idle_ms=idle_ms)
    await lowered(scene, former_visibility_ms=30_000)
    reply = await scene.autoclaim(consumer="w2", room=10)
    assert [owner for _, owner, _ in await scene.pending()] == ["w1", "w2", "w1", "w2"]
    assert 5_000 < reply[3] <= 10_000, "when the next one is due"


async def test_an_embedded_worker_gives_nothing_up_by_a_limit_that_its_worker_may_not_know(scene: Scene) -> None:
    await embedded(scene, limit=2)
    await lowered(scene, former_max_deliveries=5)
    await scene.doomed(times=2)
    await scene.autoclaim(consumer="w2", room=10)
    assert [(owner, count) for _, owner, count in await scene.pending()] == [("w2", 3)]


async def test_adoption_goes_by_the_limit_that_the_earlier_process_may_have_known(scene: Scene) -> None:
    await scene.agree(policy="stream", max_deliveries=2)
    await lowered(scene, former_max_deliveries=5)
    entry_id = await scene.stalled(times=2)
    reply = await scene.adopt()
    assert [row[:2] for row in reply[4]] == [[entry_id.encode(), 3]]
