"""move_due.lua: what is due in the schedules becomes ready, and nothing else does."""

from typing import Any

import pytest

from reaper.operations.groups import forget
from tests.scripts.scene import (
    BINARY,
    FENCE,
    SUSPECT_SCORE,
    TOO_MANY,
    Scene,
    Word,
    entry_id,
    item,
    ready,
    shown,
)

pytestmark = pytest.mark.anyio

E1, E2, E3 = entry_id(1), entry_id(2), entry_id(3)
NOTHING_DUE = -1
LOST = 0
"""The scene has no agreement, though a leader is there."""
PAYLOAD: tuple[Word, ...] = ("n", 1, "n", 2, BINARY, BINARY)


async def schedule_retry(scene: Scene, *flat: Word, verb: str = "nack", delay_ms: int = 60_000) -> str:
    """Schedule a delivery's retry; returns its entry ID."""
    added = await scene.stalled(*flat)
    assert await scene.settle(item(added, verb, delay_ms=delay_ms), journal=False) == [1]
    return added


async def entries(scene: Scene, key: str = "orders") -> list[tuple[str, ...]]:
    return [entry[1:] for entry in (await scene.state()).get(key, {"entries": []})["entries"]]


async def rows_of(scene: Scene, key: str) -> list[tuple[bytes, float]]:
    rows: Any = await scene.client.zrange(key, 0, -1, withscores=True)
    return [(member, score) for member, score in rows]


async def test_a_retry_that_is_due_becomes_ready_whole_and_no_other(scene: Scene) -> None:
    await schedule_retry(scene, *PAYLOAD)
    await scene.make_due(scene.keys.schedule)
    await schedule_retry(scene)
    reply = await scene.move_due()
    assert (reply[:2], reply[3:]) == ([b"ok", 1], [0, b"", 0, LOST])
    assert 59_000 < reply[2] <= 60_000
    state = await scene.state()
    [later] = state.pop("{orders}:scheduled:billing")
    assert later[1:4] == ("retry", E2, 1)
    assert state == {
        "orders": {"entries": [("new-1", *ready(E1, 1, "w1", *PAYLOAD))], "billing": []},
        "{orders}:fence:billing": FENCE,
        "{orders}:group:billing": {"served_until": "now"},
    }


async def test_a_leader_says_for_how_long_it_is_sure_to_serve_and_a_worker_does_not(scene: Scene) -> None:
    await scene.move_due()
    left_ms = int(await scene.client.hget(scene.keys.agreement, "served_until") or 0) - await scene.now_ms()
    assert 15_000 < left_ms <= 20_000
    await scene.client.delete(scene.keys.agreement)
    await scene.agree(recovery="embedded")
    assert (await scene.move_due(fence=""))[0] == b"ok"
    assert (await scene.state())["{orders}:group:billing"] == {"recovery": "embedded"}


async def test_a_retry_that_did_not_count_brings_its_waits_along(scene: Scene) -> None:
    await schedule_retry(scene, "n", 1, "reaper.waits", 4, "reaper.copies", 6, verb="retry")
    await scene.make_due(scene.keys.schedule)
    assert await scene.move_due() == [b"ok", 1, NOTHING_DUE, 0, b"", 0, LOST]
    assert await entries(scene) == [ready(E1, 0, "w1", "n", 1, copies=7, waits=5)]


async def test_with_policy_retry_stream_a_retry_becomes_ready_there(scene: Scene) -> None:
    await scene.agree(policy="retry-stream")
    await schedule_retry(scene)
    await scene.make_due(scene.keys.schedule)
    assert (await scene.move_due())[1] == 1
    assert await entries(scene, scene.keys.retry) == [ready(E1, 1, "w1", "n", 1)]


async def test_a_delayed_enqueue_becomes_the_first_entry_of_its_job(scene: Scene) -> None:
    assert await scene.enqueue(("mail-1", 5_000, *PAYLOAD), call="") == [1]
    await scene.make_due("{orders}:scheduled")
    assert await scene.move_due() == [b"ok", 1, NOTHING_DUE, 0, b"", 0, LOST]
    assert await entries(scene) == [(*(shown(word) for word in PAYLOAD), "reaper.job", "mail-1")]


async def test_a_delayed_enqueue_goes_to_the_stream_whatever_the_policy_and_however_many_groups(scene: Scene) -> None:
    await scene.client.xgroup_create("orders", "audit", "0")
    await scene.enqueue(("mail-1", 5_000, "n", 1))
    await scene.make_due("{orders}:scheduled")
    assert (await scene.move_due(policy="stream"))[:2] == [b"ok", 1]
    assert await entries(scene) == [("n", "1", "reaper.job", "mail-1")]


async def test_jobs_become_ready_in_the_order_they_are_due(scene: Scene) -> None:
    await scene.enqueue(("late", 9_000), ("early", 1_000), ("middle", 5_000))
    await scene.make_due("{orders}:scheduled")
    assert (await scene.move_due())[1] == 3
    assert [entry[1] for entry in await entries(scene)] == ["early", "middle", "late"]


@pytest.mark.parametrize("bound", [{"most": 2}, {"budget_bytes": 150}], ids=["number", "bytes"])
async def test_a_call_is_bounded_and_says_that_there_is_more(scene: Scene, bound: dict[str, Any]) -> None:
    await scene.enqueue(*((f"job-{n}", 1_000) for n in range(5)))
    await scene.make_due("{orders}:scheduled")
    first = await scene.move_due(**bound)
    assert (first[1], first[2]) == (2, 0)
    assert [(await scene.move_due(**bound))[1:3] for _ in range(3)] == [[2, 0], [1, NOTHING_DUE], [0, NOTHING_DUE]]


async def test_a_flood_of_retries_keeps_no_enqueue_waiting(scene: Scene) -> None:
    for _ in range(5):
        await schedule_retry(scene)
    await scene.enqueue(("mail-1", 1_000))
    await scene.make_due(scene.keys.schedule)
    await scene.make_due("{orders}:scheduled")
    assert (await scene.move_due(most=2))[1] == 3


async def test_suspects_are_never_due(scene: Scene) -> None:
    await scene.stalled(times=2)
    await scene.recover(E1)
    before = await scene.state()
    assert await scene.move_due() == [b"ok", 0, NOTHING_DUE, 0, b"", 1, LOST]
    before["{orders}:group:billing"]["served_until"] = "now"
    assert await scene.state() == before


@pytest.mark.parametrize("fence", ["reaper:8:bob", "reaper:7:bob", "other:7:alice"])
async def test_a_leader_that_is_not_the_latest_moves_nothing(scene: Scene, fence: str) -> None:
    await schedule_retry(scene)
    await scene.make_due(scene.keys.schedule)
    before = await scene.state()
    assert await scene.move_due(fence=fence) == [b"stale", FENCE.encode()]
    state = await scene.state()
    [(event, _, data)] = state.pop("{orders}:journal")
    assert (event, data["verb"], data["fence"]) == ("refused", "move_due", FENCE)
    assert state == before


async def test_a_missing_fence_refuses_a_leader(scene: Scene) -> None:
    await scene.client.delete(scene.keys.fence)
    assert await scene.move_due() == [b"stale", b""]


@pytest.mark.parametrize(("recovery", "code"), [("embedded", b"ok"), ("reaper", b"stale"), ("", b"stale")])
async def test_without_a_fence_only_embedded_workers_move_what_is_due(scene: Scene, recovery: str, code: bytes) -> None:
    await schedule_retry(scene)
    await scene.make_due(scene.keys.schedule)
    await scene.agree(recovery=recovery)
    assert (await scene.move_due(fence=""))[0] == code
    assert len(await entries(scene)) == (1 if code == b"ok" else 0)


async def test_memory_that_is_full_stops_nothing_that_is_due(scene: Scene) -> None:
    await schedule_retry(scene)
    await scene.enqueue(("mail-1", 1_000))
    await scene.make_due(scene.keys.schedule)
    await scene.make_due("{orders}:scheduled")
    await scene.fill_memory()
    reply = await scene.move_due()
    await scene.free_memory()
    assert reply == [b"ok", 2, NOTHING_DUE, 0, b"", 0, LOST]


async def test_what_cannot_be_made_ready_is_put_off_and_is_in_nobodys_way(scene: Scene) -> None:
    await scene.client.zadd("{orders}:scheduled", {b"no job": 1, b"\x80": 2})
    await schedule_retry(scene)
    await scene.make_due(scene.keys.schedule)
    code, moved, wait_ms, held, why, *_ = await scene.move_due()
    assert (code, moved, held, why) == (b"ok", 1, 2, b"it is no job of ours")
    assert 9_000 < wait_ms <= 10_000
    assert {member for member, _ in await rows_of(scene, "{orders}:scheduled")} == {b"no job", b"\x80"}
    assert (await scene.move_due())[1:4:2] == [0, 0]


async def test_where_the_policy_cannot_work_retries_wait_and_enqueues_do_not(scene: Scene) -> None:
    await schedule_retry(scene)
    await scene.client.xgroup_create("orders", "audit", "0")
    await scene.enqueue(("mail-1", 1_000))
    await scene.make_due(scene.keys.schedule)
    await scene.make_due("{orders}:scheduled")
    reply = await scene.move_due()
    assert (reply[1], *reply[3:]) == (1, 1, b"several_groups", 0, LOST)
    await scene.client.xgroup_destroy("orders", "audit")
    await scene.make_due(scene.keys.schedule)
    assert (await scene.move_due())[1] == 1
    assert await entries(scene) == [("reaper.job", "mail-1"), ready(E1, 1, "w1", "n", 1)]


async def test_a_retry_with_too_many_fields_is_never_scheduled(scene: Scene) -> None:
    await scene.stalled(*TOO_MANY)
    assert await scene.settle(item(E1, "nack", delay_ms=1_000)) == [[4, b"too many fields"]]
    assert await scene.pending() == [(E1, "w1", 1)]


async def test_forgetting_a_group_makes_its_scheduled_retries_ready(scene: Scene) -> None:
    await schedule_retry(scene, "n", 1, verb="retry")
    await scene.client.delete(scene.keys.fence)
    forgotten = await forget(scene.client, scene.keys, namespace="reaper")
    assert forgotten.made_ready == 1
    assert await entries(scene) == [ready(E1, 0, "w1", "n", 1, waits=1)]


async def test_scores_of_suspects_lie_behind_the_longest_delay(scene: Scene) -> None:
    await schedule_retry(scene, delay_ms=10**15 - 1)
    [(_, score)] = await rows_of(scene, scene.keys.schedule)
    assert score < SUSPECT_SCORE


async def test_a_leader_is_told_where_its_agreement_was_lost(scene: Scene) -> None:
    assert (await scene.move_due())[6] == LOST
    await scene.agree(fence_token=7)
    assert (await scene.move_due())[6] == 1
