"""forget_group.lua: what waits with us becomes ready, then what we keep goes (`tests/operator` tests the command)."""

from typing import Any

import pytest
from redis.exceptions import ResponseError

from tests.scripts.scene import Scene, ready
from workers.protocol.calls import GroupCalls
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio


async def forget(scene: Scene, *, budget_bytes: int = 10**9) -> Any:
    """Return code, jobs made ready, detail. No replica holds the group any more."""
    await scene.client.delete(scene.keys.lease)
    return await _run(scene, budget_bytes)


async def _run(scene: Scene, budget_bytes: int) -> Any:
    words = GroupCalls(scene.keys, 1_000).spell("orders", "stream", budget_bytes, more_keys=[scene.keys.lease])
    return await load_script("reaper", "forget_group").run(scene.client, *words)


async def park(scene: Scene, count: int) -> list[str]:
    """Park ``count`` quarantined jobs; return their jobs."""
    ids = [await scene.stalled("n", 1, times=2) for _ in range(count)]
    await scene.recover(*ids, journal=False)
    return ids


async def test_quarantined_jobs_become_ready_before_everything_of_ours_is_removed(scene: Scene) -> None:
    [job] = await park(scene, 1)
    assert await forget(scene) == [b"done", 1, b""]
    await scene.client.delete(scene.keys.journal)
    assert await scene.state() == {"orders": {"entries": [("new-1", *ready(job, 2, "w1", "n", 1))], "billing": []}}


async def test_jobs_beyond_the_budget_of_a_call_are_put_off(scene: Scene) -> None:
    await park(scene, 5)
    assert await forget(scene, budget_bytes=1) == [b"more", 1, b""]
    assert await forget(scene) == [b"done", 4, b""]


async def test_a_job_that_cannot_be_made_ready_is_not_forgotten(scene: Scene) -> None:
    await park(scene, 1)
    await scene.set_settings(policy="retry-stream")
    await scene.client.set(scene.keys.retry, "in the way")
    await scene.client.delete(scene.keys.lease)
    before = await scene.state()
    code, moved, why = await forget(scene)
    assert (code, moved, b"WRONGTYPE" in why) == (b"held", 0, True)
    assert await scene.state() == before


async def test_dead_letters_and_the_journal_stay(scene: Scene) -> None:
    added = await scene.doomed()
    await scene.recover(added)
    assert await forget(scene) == [b"done", 0, b""]
    assert sorted(await scene.state()) == ["orders", "{orders}:dead:billing", "{orders}:journal"]


async def test_a_key_of_another_program_stops_it(scene: Scene) -> None:
    await scene.client.set(scene.keys.quarantine, "theirs")
    await scene.client.delete(scene.keys.lease)
    before = await scene.state()
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await forget(scene)
    assert await scene.state() == before


async def test_a_replica_that_holds_the_group_stops_it(scene: Scene) -> None:
    before = await scene.state()
    assert await _run(scene, 10**9) == [b"served", 0, before["{orders}:lease:billing"].encode()]
    assert await scene.state() == before


async def test_a_group_can_be_forgotten_when_memory_is_full(scene: Scene) -> None:
    await park(scene, 1)
    await scene.fill_memory()
    forgotten = await forget(scene)
    await scene.free_memory()
    assert forgotten == [b"done", 1, b""]


@pytest.mark.parametrize(
    ("recovery", "left_ms", "code"),
    [("embedded", 60_000, b"embedded"), ("embedded", -1, b"done"), ("reaper", 60_000, b"done")],
)
async def test_embedded_workers_keep_their_group(scene: Scene, recovery: str, left_ms: int, code: bytes) -> None:
    [job] = await park(scene, 1)
    word = f"{await scene.now_ms() + left_ms},"
    await scene.set_settings(recovery=recovery, **{"registration:w2": word})
    await scene.client.delete(scene.keys.lease)
    before = await scene.state()
    answer = await forget(scene)
    assert answer[0] == code
    if code == b"embedded":
        assert answer[1:] == [0, b"w2"]
        assert await scene.state() == before
    else:
        assert (await scene.state())["orders"]["entries"] == [("new-1", *ready(job, 2, "w1", "n", 1))]
