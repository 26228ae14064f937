"""What the leader tidies: only what nobody needs, only if asked to, and only while its fence stands."""

from datetime import timedelta

import pytest
from redis.asyncio import Redis

from reaper.recovery.housekeeping import Housekeeping, Lost
from reaper.recovery.writer import GroupWriter
from reaper.settings import ReaperSettings, WatchedGroup
from tests.scripts.scene import Scene, entry_id
from workers.protocol.calls import Journal
from workers.protocol.calls.upkeep import Authority
from workers.protocol.keys import RESTORED_CONSUMER
from workers.protocol.messages import Redelivery

pytestmark = pytest.mark.anyio

VISIBILITY_MS = 30_000
GROUP = WatchedGroup(
    stream="orders",
    group="billing",
    visibility_timeout=timedelta(milliseconds=VISIBILITY_MS),
    max_deliveries=3,
    redelivery=Redelivery.STREAM,
)


@pytest.fixture
async def scene(client: Redis) -> Scene:
    prepared = Scene(client)
    await prepared.prepare()
    return prepared


def housekeeping(client: Redis, *, token: int = 7, **settings: object) -> Housekeeping:
    """Housekeeping of leader alice; the scene's fence has token 7."""
    writer = GroupWriter(client, GROUP, Authority("reaper", token, "alice"), Journal(0, 1_000))
    return Housekeeping(writer, ReaperSettings.model_validate(settings))


async def consumers(client: Redis) -> set[bytes]:
    """Return the names of the group's consumers but for the one by which it is known."""
    found = {info["name"] for info in await client.xinfo_consumers("orders", "billing")}
    return found - {RESTORED_CONSUMER.encode()}


# ---- after a full scan


async def test_the_groups_position_is_remembered(scene: Scene) -> None:
    last = await scene.stalled()
    await housekeeping(scene.client).run()
    assert await scene.client.hget(scene.keys.agreement, "last_id") == last.encode()


async def test_consumers_are_left_alone_unless_asked_otherwise(scene: Scene) -> None:
    await scene.client.xgroup_createconsumer("orders", "billing", "silent")
    await housekeeping(scene.client).run()
    assert await consumers(scene.client) == {b"silent"}


async def test_silent_consumers_that_hold_nothing_are_deleted_if_asked_to(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for name in ("silent", "quiet"):
        await scene.client.xgroup_createconsumer("orders", "billing", name)
    await scene.stalled(consumer="holder")
    await wait_for_a_millisecond_of_silence(scene)
    await housekeeping(scene.client, consumer_retention=0.001).run()
    assert await consumers(scene.client) == {b"holder"}
    assert "orders/billing: deleted 2 silent consumers" in caplog.messages


async def test_consumers_that_were_heard_of_lately_stay(scene: Scene) -> None:
    await scene.client.xgroup_createconsumer("orders", "billing", "new")
    await housekeeping(scene.client, consumer_retention=3_600).run()
    assert await consumers(scene.client) == {b"new"}


async def test_a_leader_of_the_past_tidies_nothing(scene: Scene) -> None:
    await scene.client.xgroup_createconsumer("orders", "billing", "silent")
    await wait_for_a_millisecond_of_silence(scene)
    before = await scene.state()
    await housekeeping(scene.client, token=6, consumer_retention=0.001).run()
    assert (await scene.state(), await consumers(scene.client)) == (before, {b"silent"})


async def wait_for_a_millisecond_of_silence(scene: Scene) -> None:
    began = await scene.now_ms()
    while await scene.now_ms() < began + 3:
        pass


# ---- a group that was destroyed


async def destroyed_after(scene: Scene, *, delivered: int) -> list[bytes]:
    """Deliver, remember the position, destroy the group; returns what was watched."""
    watched = [await scene.stalled() for _ in range(delivered)]
    await housekeeping(scene.client).run()
    await scene.client.xgroup_destroy("orders", "billing")
    return [one.encode() for one in watched]


async def test_a_destroyed_group_stays_so_unless_asked_otherwise(scene: Scene) -> None:
    watched = await destroyed_after(scene, delivered=1)
    before = await scene.state()
    await housekeeping(scene.client).restore(watched, made=0)
    assert await scene.state() == before


async def test_it_is_recreated_where_it_stood_with_what_was_watched(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    watched = await destroyed_after(scene, delivered=2)
    ready = await scene.add()
    await housekeeping(scene.client, recreate_groups=True).restore(watched, made=0)
    assert await scene.pending() == [(entry_id(number), RESTORED_CONSUMER, 1) for number in (1, 2)]
    assert await scene.client.execute_command(
        "XREADGROUP", "GROUP", "billing", "w2", "STREAMS", "orders", ">"
    ) == [[b"orders", [[ready.encode(), [b"n", b"3"]]]]]  # fmt: skip
    assert caplog.messages == [
        "orders/billing: the group was destroyed; recreated at its last known position, 2 of 2 watched entries put back"
    ]


async def test_what_was_put_back_is_overdue(scene: Scene) -> None:
    watched = await destroyed_after(scene, delivered=1)
    await housekeeping(scene.client, recreate_groups=True).restore(watched, made=0)
    (row,) = await scene.client.execute_command("XPENDING", "orders", "billing", "-", "+", 10)
    assert row[2] >= VISIBILITY_MS


async def test_entries_that_are_deleted_are_told_as_lost_and_many_are_put_back_in_several_calls(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reaper.recovery.housekeeping.RESTORE_BATCH", 3)
    watched = await destroyed_after(scene, delivered=4)
    await scene.client.xdel("orders", watched[0])
    await housekeeping(scene.client, recreate_groups=True).restore(watched, made=0)
    assert len(await scene.pending()) == 3
    assert "3 of 4 watched entries put back" in caplog.text


async def test_a_group_whose_position_was_never_noted_is_left_to_a_person_and_told_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.client.xgroup_destroy("orders", "billing")
    leader = housekeeping(scene.client, recreate_groups=True)
    for _ in range(3):
        assert await leader.restore([], made=0) == Lost(made=0)
    assert await scene.client.xinfo_groups("orders") == []
    assert caplog.messages == [
        "orders/billing: the group is not recreated: its position was never noted; create it by hand"
    ]


async def test_a_second_loss_of_the_group_is_told_again(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    leader = housekeeping(scene.client, recreate_groups=True)
    for _ in range(2):
        await scene.client.xgroup_destroy("orders", "billing")
        await scene.client.delete(scene.keys.agreement)
        await leader.restore([], made=0)
        await scene.client.xgroup_create("orders", "billing")
        await leader.run()
    assert len(caplog.messages) == 2


async def test_a_group_that_somebody_else_has_created_is_left_as_it_is(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    watched = await destroyed_after(scene, delivered=1)
    await scene.client.xgroup_create("orders", "billing", "0")
    before = await scene.state()
    await housekeeping(scene.client, recreate_groups=True).restore(watched, made=0)
    assert (await scene.state(), caplog.messages) == (before, [])


async def test_a_leader_of_the_past_recreates_nothing(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    watched = await destroyed_after(scene, delivered=1)
    before = await scene.state()
    await housekeeping(scene.client, token=6, recreate_groups=True).restore(watched, made=0)
    assert await scene.state() == before
    assert caplog.messages == ["orders/billing: the group is not recreated: a later term serves it"]
