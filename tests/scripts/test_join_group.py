"""join_group.lua and delete_consumer.lua: how a worker comes and goes."""

from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.scripts.scene import HOLDER, Scene, Word, entry_id
from workers.protocol.calls.membership import delete_consumers as leave
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Joined:
    """The reply to a worker that joins, without the server's time."""

    in_force: tuple[str, str, str, str]
    read_retry: int
    started_at: str
    mismatch: str
    served_ms: int = 0
    begins: int = 0


@dataclass(frozen=True)
class GoesBy:
    """The values in the registration of a worker."""

    consumer: str = "w1.1"
    counts_for_ms: int = 35_000
    begins: int = 0
    policy: str = "stream"
    visibility_ms: Word = 30_000
    max_deliveries: Word = 3


async def join(
    scene: Scene,
    *,
    start: str = "0",
    policy: str = "",
    visibility_ms: Word = "",
    max_deliveries: Word = "",
    recovery: str = "reaper",
    worker: str = "w1",
    word: GoesBy | None = None,
) -> Joined:
    """Run ``join_group``."""
    keys = scene.keys
    word = word or GoesBy(
        policy=policy or "stream", visibility_ms=visibility_ms or 30_000, max_deliveries=max_deliveries or 3
    )
    reply = await load_script("workers.protocol", "join_group").run(
        scene.client,
        [keys.stream, keys.retry, keys.settings, keys.lease],
        [
            keys.group, start, policy, visibility_ms, max_deliveries, recovery, word.policy, word.visibility_ms,
            word.max_deliveries, recovery, worker, word.consumer, word.counts_for_ms, word.begins,
        ],
    )  # fmt: skip
    assert abs(reply[6] - await scene.now_ms()) < 5_000
    policy, visibility, limit, mode = (part.decode() for part in reply[:4])
    in_force = (policy, visibility, limit, mode)
    return Joined(in_force, reply[4], reply[5].decode(), reply[7].decode(), reply[8], reply[9])


async def words(scene: Scene) -> dict[str, str]:
    """Return how the settings of registered workers differ, by consumer."""
    fields = (await scene.state()).get(scene.keys.settings, {})
    shown = {}
    for name, value in fields.items():
        if name.startswith("registration:"):
            until, mismatch = value.split(",", 1)
            assert until == "now"
            shown[name.removeprefix("registration:")] = mismatch
    return shown


async def delete_consumers(scene: Scene, *consumers: str) -> Any:
    """Run ``delete_consumer``."""
    return await load_script("workers.protocol", "delete_consumer").run(
        scene.client, [scene.keys.stream, scene.keys.settings], [scene.keys.group, *consumers]
    )


@pytest.fixture
def bare(client: Redis) -> Scene:
    """Nothing at all."""
    return Scene(client)


async def test_the_first_worker_makes_stream_group_and_settings(bare: Scene) -> None:
    joined = await join(bare, policy="stream", visibility_ms=1000, max_deliveries=3)
    assert joined == Joined(("stream", "1000", "3", "reaper"), 0, "0", "")
    group_settings = {
        "policy": "stream",
        "visibility_ms": "1000",
        "max_deliveries": "3",
        "recovery": "reaper",
        "registration:w1.1": "now,",
    }
    assert await bare.state() == {
        "orders": {"entries": [], "billing": []},
        "{orders}:group:billing": group_settings,
    }
    consumers: Any = await bare.client.xinfo_consumers("orders", "billing")
    assert [consumer["name"] for consumer in consumers] == [b"w1.1"], "it is there before the worker reads"


async def test_a_worker_without_wishes_follows_the_group(scene: Scene) -> None:
    await scene.set_settings(policy="stream", visibility_ms=1000, max_deliveries=5, recovery="reaper")
    before = await scene.state()
    assert await join(scene) == Joined(("stream", "1000", "5", "reaper"), 0, "", "")
    settings = before[scene.keys.settings] | {"registration:w1.1": "now,"}
    assert await scene.state() == before | {scene.keys.settings: settings}


async def test_a_worker_that_wishes_something_else_says_so_in_its_word(scene: Scene) -> None:
    await scene.set_settings(policy="stream", visibility_ms=1000)
    why = "policy stream is in force, retry-stream is set; visibility_ms 1000 is in force, 5 is set"
    word = GoesBy()
    assert (await join(scene, policy="retry-stream", visibility_ms=5, word=word)).mismatch == why
    await join(scene, worker="w2", word=GoesBy("w2.1"))
    assert await words(scene) == {"w1.1": f"worker w1: {why}", "w2.1": ""}
    await join(scene, word=word)
    assert (await words(scene))["w1.1"] == ""


async def test_a_worker_goes_by_the_group_settings_or_by_what_it_assumes(scene: Scene) -> None:
    assert (await join(scene, word=GoesBy(max_deliveries=4))).in_force[2] == "4"
    await scene.set_settings(visibility_ms=4_000, max_deliveries=2)
    assert (await join(scene, word=GoesBy())).in_force[1:3] == ("4000", "2")


async def test_lost_group_settings_are_written_anew_by_a_worker_that_knows_them(bare: Scene) -> None:
    known = GoesBy(policy="retry-stream", visibility_ms=60_000, max_deliveries=5)
    joined = await join(bare, visibility_ms=1_000, word=known)
    assert joined.in_force == ("retry-stream", "60000", "5", "reaper")
    assert joined.mismatch == "visibility_ms 60000 is in force, 1000 is set"


async def test_words_of_workers_that_have_gone_are_kept_for_whoever_keeps_house(scene: Scene) -> None:
    for consumer, counts_for_ms in {"lives.1": 35_000, "went.1": -1, "gone.1": -700_000}.items():
        await join(scene, word=GoesBy(consumer, counts_for_ms=counts_for_ms))
    await join(scene, word=GoesBy("new.1"))
    assert set(await words(scene)) == {"gone.1", "lives.1", "new.1", "went.1"}


async def test_the_word_of_a_consumer_that_somebody_else_has_deleted_stays_to_tell_it(scene: Scene) -> None:
    await join(scene, word=GoesBy())
    await scene.client.xgroup_delconsumer("orders", "billing", "w1.1")
    assert await delete_consumers(scene, "w1.1") == 0
    assert [*await words(scene)] == ["w1.1"]


async def test_a_consumer_deleted_in_the_retry_stream_keeps_its_registration(scene: Scene) -> None:
    await join(scene, word=GoesBy())
    await scene.client.xgroup_delconsumer("orders", "billing", "w1.1")
    await scene.client.xgroup_create(scene.keys.retry, "billing", "0", mkstream=True)
    await scene.client.xgroup_createconsumer(scene.keys.retry, "billing", "w1.1")
    await leave(scene.client, scene.keys.retry, scene.keys, ["w1.1"])
    assert await scene.client.xinfo_consumers(scene.keys.retry, "billing") == []
    assert [*await words(scene)] == ["w1.1"]
    await join(scene, word=GoesBy())
    await leave(scene.client, scene.keys.stream, scene.keys, ["w1.1"])
    assert await words(scene) == {}


async def test_a_consumer_is_deleted_for_callers_that_know_of_no_words(scene: Scene) -> None:
    await scene.client.xgroup_createconsumer("orders", "billing", "w1")
    script = load_script("workers.protocol", "delete_consumer")
    assert await script.run(scene.client, ["orders"], ["billing", "w1"]) == 1


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
    await bare.set_settings(last_id=entry_id(2))
    assert (await join(bare)).started_at == entry_id(2)


@pytest.mark.parametrize("known", [entry_id(2), "5-2"])
async def test_a_stream_that_was_made_anew_is_read_from_where_the_worker_is_told(bare: Scene, known: str) -> None:
    await bare.add(at="5-1")
    await bare.set_settings(last_id=known)
    assert (await join(bare)).started_at == "0"


@pytest.mark.parametrize("reason", ["policy", "it exists"])
async def test_the_retry_stream_is_read_and_has_its_group(scene: Scene, reason: str) -> None:
    if reason == "policy":
        await scene.set_settings(policy="retry-stream")
    else:
        await scene.add(stream=scene.keys.retry)
    assert (await join(scene)).read_retry == 1
    assert (await scene.state())["{orders}:retry:billing"]["billing"] == []


@pytest.mark.parametrize("broken", ["stream", "retry"])
async def test_a_key_that_is_no_stream_is_an_error(bare: Scene, broken: str) -> None:
    await bare.client.set(getattr(bare.keys, broken), "in the way")
    with pytest.raises(Exception, match="WRONGTYPE"):
        await join(bare, policy="retry-stream")


@pytest.mark.parametrize("recovery", ["reaper", "embedded"])
async def test_workers_come_and_go_when_memory_is_full(bare: Scene, recovery: str) -> None:
    await bare.fill_memory()
    joined = await join(bare, policy="retry-stream", recovery=recovery)
    deleted = await delete_consumers(bare, "w1.1")
    await bare.free_memory()
    begins = int(recovery == "embedded")
    assert joined == Joined(("retry-stream", "30000", "3", recovery), 1, "0", "", begins=begins)
    assert deleted == 1


async def test_a_consumer_that_holds_nothing_is_deleted_and_one_that_holds_something_is_not(scene: Scene) -> None:
    await scene.stalled(consumer="busy")
    await scene.stalled(consumer="idle")
    await scene.client.xack("orders", "billing", entry_id(2))
    assert await delete_consumers(scene, "idle", "busy", "unknown") == 1
    consumers: Any = await scene.client.xinfo_consumers("orders", "billing")
    assert [consumer["name"] for consumer in consumers] == [b"busy"]
    assert await scene.pending() == [(entry_id(1), "busy", 1)]


async def test_consumers_of_a_destroyed_group_are_an_error(scene: Scene) -> None:
    await scene.client.xgroup_destroy("orders", "billing")
    with pytest.raises(Exception, match="NOGROUP"):
        await delete_consumers(scene, "idle")


# ---- who recovers

BY_REAPER = {"policy": "stream", "recovery": "reaper", "token": "7"}


async def served(scene: Scene, left_ms: int) -> None:
    """Let a replica hold the lease for another ``left_ms``, 0 = no longer."""
    await scene.set_settings(**BY_REAPER)
    await scene.client.set(scene.keys.lease, HOLDER, px=left_ms or None)
    if not left_ms:
        await scene.client.delete(scene.keys.lease)


async def test_an_embedded_worker_begins_in_a_group_without_settings(bare: Scene) -> None:
    joined = await join(bare, recovery="embedded")
    assert (joined.in_force[3], joined.served_ms, joined.begins, joined.mismatch) == ("embedded", 0, 1, "")
    assert (await join(bare, recovery="embedded", worker="w2")).begins == 0


async def test_while_a_replica_serves_the_group_an_embedded_worker_stands_by_and_changes_nothing(scene: Scene) -> None:
    await served(scene, 10_000)
    joined = await join(scene, recovery="embedded", policy="in-place", word=GoesBy())
    assert (joined.in_force[0], joined.in_force[3], joined.begins) == ("stream", "reaper", 0)
    assert 15_000 < joined.served_ms <= 20_000, "what is left of the lease, and its TTL for another replica"
    why = "policy stream is in force, in-place is set; recovery reaper is in force, embedded is set"
    assert joined.mismatch == why
    assert (await scene.state())["{orders}:lease:billing"] == HOLDER
    assert (await words(scene))["w1.1"] == f"worker w1: {why}"


async def test_a_step_back_of_the_clock_does_not_prolong_the_wait_for_a_replica(scene: Scene) -> None:
    await served(scene, 3_600_000)
    assert (await join(scene, recovery="embedded", word=GoesBy())).served_ms == 20_000


async def test_when_the_replica_is_gone_an_embedded_worker_begins(scene: Scene) -> None:
    await served(scene, 0)
    joined = await join(scene, recovery="embedded")
    assert (joined.in_force[3], joined.served_ms, joined.begins, joined.mismatch) == ("embedded", 0, 1, "")
    state = await scene.state()
    assert "{orders}:lease:billing" not in state
    group_settings = state["{orders}:group:billing"]
    assert (group_settings["recovery"], group_settings["token"]) == ("embedded", "7")


async def test_embedded_workers_that_take_the_group_over_from_a_replica_write_their_policy(scene: Scene) -> None:
    await served(scene, 0)
    joined = await join(scene, recovery="embedded", policy="in-place", word=GoesBy())
    assert (joined.in_force[0], joined.in_force[3], joined.begins, joined.mismatch) == ("in-place", "embedded", 1, "")
    follower = await join(scene, recovery="embedded", policy="stream", worker="w2")
    assert follower.in_force[0] == "in-place", "later ones follow"
    assert follower.mismatch == "policy in-place is in force, stream is set"


async def test_a_plain_workers_word_binds_nobody_while_no_replica_has_come(bare: Scene) -> None:
    await join(bare, recovery="reaper")
    assert (await join(bare, recovery="embedded")).in_force[3] == "embedded"


async def test_a_plain_worker_takes_nothing_from_embedded_ones_and_says_that_they_differ(scene: Scene) -> None:
    await scene.set_settings(recovery="embedded")
    joined = await join(scene, recovery="reaper")
    assert (joined.in_force[3], joined.mismatch) == ("embedded", "recovery embedded is in force, reaper is set")
