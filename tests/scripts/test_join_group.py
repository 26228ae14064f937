"""join_group.lua and delete_consumer.lua: how a worker comes and goes."""

from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.scripts.scene import FENCE, Scene, Word, entry_id
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Joined:
    """What a worker learns; the server's time is left out."""

    agreed: tuple[str, str, str, str]
    read_retry: int
    started_at: str
    groups: int
    mismatch: str
    served_ms: int = 0
    begins: int = 0


async def join(
    scene: Scene,
    *,
    start: str = "0",
    policy: str = "",
    visibility_ms: Word = "",
    max_deliveries: Word = "",
    recovery: str = "reaper",
    worker: str = "w1",
) -> Joined:
    """Run ``join_group``."""
    keys = scene.keys
    reply = await load_script("workers.protocol", "join_group").run(
        scene.client,
        [keys.stream, keys.retry, keys.agreement, keys.fence],
        [keys.group, start, policy, visibility_ms, max_deliveries, recovery, worker],
    )
    assert abs(reply[7] - await scene.now_ms()) < 5_000
    policy, visibility, limit, mode = (part.decode() for part in reply[:4])
    agreed = (policy, visibility, limit, mode)
    return Joined(agreed, reply[4], reply[5].decode(), reply[6], reply[8].decode(), reply[9], reply[10])


async def delete_consumers(scene: Scene, *consumers: str) -> Any:
    """Run ``delete_consumer``."""
    return await load_script("workers.protocol", "delete_consumer").run(
        scene.client, [scene.keys.stream], [scene.keys.group, *consumers]
    )


@pytest.fixture
def bare(client: Redis) -> Scene:
    """Nothing at all."""
    return Scene(client)


async def test_the_first_worker_makes_stream_group_and_agreement(bare: Scene) -> None:
    joined = await join(bare, policy="stream", visibility_ms=1000, max_deliveries=3)
    assert joined == Joined(("stream", "1000", "3", "reaper"), 0, "0", 1, "")
    agreement = {"policy": "stream", "visibility_ms": "1000", "max_deliveries": "3", "recovery": "reaper"}
    assert await bare.state() == {
        "orders": {"entries": [], "billing": []},
        "{orders}:group:billing": agreement,
    }


async def test_a_worker_without_wishes_follows_the_group(scene: Scene) -> None:
    await scene.agree(policy="stream", visibility_ms=1000, max_deliveries=5, recovery="reaper")
    before = await scene.state()
    assert await join(scene) == Joined(("stream", "1000", "5", "reaper"), 0, "", 1, "")
    assert await scene.state() == before


async def test_what_nobody_has_agreed_on_is_said_to_be_open(scene: Scene) -> None:
    assert (await join(scene)).agreed == ("", "", "", "reaper")


async def test_a_worker_that_wishes_something_else_is_recorded_until_it_agrees(scene: Scene) -> None:
    await scene.agree(policy="stream", visibility_ms=1000)
    why = "policy stream is agreed, retry-stream is set; visibility_ms 1000 is agreed, 5 is set"
    assert (await join(scene, policy="retry-stream", visibility_ms=5)).mismatch == why
    assert (await scene.state())["{orders}:group:billing"]["mismatch"] == f"worker w1: {why}"
    await join(scene, worker="w2")
    assert (await scene.state())["{orders}:group:billing"]["mismatch"] == f"worker w1: {why}"
    await join(scene)
    assert "mismatch" not in (await scene.state())["{orders}:group:billing"]


@pytest.mark.parametrize(("start", "read"), [("0", 3), ("$", 0), (entry_id(2), 1)])
async def test_a_new_group_starts_where_it_is_told_to(bare: Scene, start: str, read: int) -> None:
    for _ in range(3):
        await bare.add()
    assert (await join(bare, start=start)).started_at == start
    reply: Any = await bare.client.xreadgroup("billing", "w1", {"orders": ">"})
    assert len(reply[0][1] if reply else []) == read


async def test_a_group_that_was_destroyed_goes_on_where_it_was(bare: Scene) -> None:
    for _ in range(3):
        await bare.add()
    await bare.agree(last_id=entry_id(2))
    assert (await join(bare)).started_at == entry_id(2)


async def test_a_stream_that_was_made_anew_is_read_from_where_the_worker_is_told(bare: Scene) -> None:
    await bare.add(at="5-1")
    await bare.agree(last_id=entry_id(2))
    assert (await join(bare)).started_at == "0"


@pytest.mark.parametrize("reason", ["policy", "it exists"])
async def test_the_retry_stream_is_read_and_has_its_group(scene: Scene, reason: str) -> None:
    if reason == "policy":
        await scene.agree(policy="retry-stream")
    else:
        await scene.add(stream=scene.keys.retry)
    assert (await join(scene)).read_retry == 1
    assert (await scene.state())["{orders}:retry:billing"]["billing"] == []


async def test_several_groups_are_counted(scene: Scene) -> None:
    await scene.client.xgroup_create("orders", "audit", "0")
    assert (await join(scene)).groups == 2


@pytest.mark.parametrize("broken", ["stream", "retry"])
async def test_a_key_that_is_no_stream_is_an_error(bare: Scene, broken: str) -> None:
    await bare.client.set(getattr(bare.keys, broken), "in the way")
    with pytest.raises(Exception, match="WRONGTYPE"):
        await join(bare, policy="retry-stream")


async def test_a_worker_can_join_when_memory_is_full(bare: Scene) -> None:
    await bare.fill_memory()
    joined = await join(bare, policy="retry-stream")
    await bare.free_memory()
    assert joined == Joined(("retry-stream", "", "", "reaper"), 1, "0", 1, "")


async def test_a_consumer_that_holds_nothing_is_deleted_and_one_that_holds_something_is_not(scene: Scene) -> None:
    await scene.stalled(consumer="busy")
    await scene.stalled(consumer="idle")
    await scene.client.xack("orders", "billing", entry_id(2))
    assert await delete_consumers(scene, "idle", "busy", "unknown") == [1, 0, 1]
    consumers: Any = await scene.client.xinfo_consumers("orders", "billing")
    assert [consumer["name"] for consumer in consumers] == [b"busy"]
    assert await scene.pending() == [(entry_id(1), "busy", 1)]


async def test_a_worker_can_clear_up_when_memory_is_full(scene: Scene) -> None:
    await scene.client.xgroup_createconsumer("orders", "billing", "idle")
    await scene.fill_memory()
    assert await delete_consumers(scene, "idle") == [1]


async def test_consumers_of_a_destroyed_group_are_an_error(scene: Scene) -> None:
    await scene.client.xgroup_destroy("orders", "billing")
    with pytest.raises(Exception, match="NOGROUP"):
        await delete_consumers(scene, "idle")


# ---- who recovers

BY_REAPER = {"policy": "stream", "recovery": "reaper", "fence_token": "7"}


async def served(scene: Scene, left_ms: int) -> None:
    """Let a leader serve the group that is sure to do so for another ``left_ms``."""
    await scene.agree(**BY_REAPER, served_until=await scene.now_ms() + left_ms)


async def test_where_nobody_has_agreed_yet_an_embedded_worker_begins(bare: Scene) -> None:
    joined = await join(bare, recovery="embedded")
    assert (joined.agreed[3], joined.served_ms, joined.begins, joined.mismatch) == ("embedded", 0, 1, "")
    assert (await join(bare, recovery="embedded", worker="w2")).begins == 0


async def test_while_a_leader_serves_the_group_an_embedded_worker_stands_by(scene: Scene) -> None:
    await served(scene, 20_000)
    joined = await join(scene, recovery="embedded")
    assert (joined.agreed[3], joined.begins) == ("reaper", 0)
    assert 15_000 < joined.served_ms <= 20_000
    assert joined.mismatch == "recovery reaper is agreed, embedded is set"
    state = await scene.state()
    assert state["{orders}:fence:billing"] == FENCE
    assert state["{orders}:group:billing"]["mismatch"] == f"worker w1: {joined.mismatch}"


async def test_when_the_leader_is_gone_an_embedded_worker_begins_and_removes_the_fence(scene: Scene) -> None:
    await served(scene, -1)
    joined = await join(scene, recovery="embedded")
    assert (joined.agreed[3], joined.served_ms, joined.begins, joined.mismatch) == ("embedded", 0, 1, "")
    state = await scene.state()
    assert "{orders}:fence:billing" not in state
    agreement = state["{orders}:group:billing"]
    assert (agreement["recovery"], agreement["fence_token"]) == ("embedded", "7"), "no earlier term gets back in"


async def test_a_plain_workers_word_binds_nobody_while_no_leader_has_come(bare: Scene) -> None:
    await join(bare, recovery="reaper")
    assert (await join(bare, recovery="embedded")).agreed[3] == "embedded"


async def test_a_plain_worker_takes_nothing_from_embedded_ones_and_says_that_they_differ(scene: Scene) -> None:
    await scene.agree(recovery="embedded")
    joined = await join(scene, recovery="reaper")
    assert (joined.agreed[3], joined.mismatch) == ("embedded", "recovery embedded is agreed, reaper is set")


async def test_an_embedded_worker_begins_when_memory_is_full(scene: Scene) -> None:
    await served(scene, -1)
    await scene.fill_memory()
    joined = await join(scene, recovery="embedded")
    await scene.free_memory()
    assert joined.begins == 1
