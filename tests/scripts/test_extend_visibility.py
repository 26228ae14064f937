"""extend_visibility.lua: a worker's own deliveries get their idle time back, and nothing else changes."""

import pytest

from tests.scripts.scene import LONG_IDLE_MS, Scene, entry_id

pytestmark = pytest.mark.anyio

REFUSED, EXTENDED, PAYLOAD_GONE = 0, 1, 2
E1, E2, E3 = entry_id(1), entry_id(2), entry_id(3)


async def is_extended(scene: Scene, one: str, source: str | None = None) -> bool:
    """Tell whether the idle time of an entry that was idle for long has started over."""
    return (await scene.idle_ms(source))[one] < LONG_IDLE_MS / 2


async def test_idle_time_starts_over_and_count_and_owner_stay(scene: Scene) -> None:
    await scene.stalled(times=2)
    assert await scene.extend(E1, times=2) == [EXTENDED]
    assert await scene.pending() == [(E1, "w1", 2)]
    assert await is_extended(scene, E1)


async def test_many_are_extended_in_one_call_and_each_has_its_own_result(scene: Scene) -> None:
    ids = [await scene.stalled(consumer="w1" if n % 3 else "w2") for n in range(1_500)]
    before = await scene.pending()
    results = await scene.extend(*ids)
    assert results == [EXTENDED if n % 3 else REFUSED for n in range(1_500)]
    assert await scene.pending() == before
    idle = await scene.idle_ms()
    assert [idle[one] < LONG_IDLE_MS / 2 for one in ids] == [bool(n % 3) for n in range(1_500)]


async def test_a_delivery_of_the_retry_stream_is_extended_there(scene: Scene) -> None:
    retry = scene.keys.retry
    await scene.client.xgroup_create(retry, "billing", "0", mkstream=True)
    await scene.add(stream=retry)
    await scene.deliver(E1, stream=retry)
    assert await scene.extend(E1, source=retry) == [EXTENDED]
    assert await is_extended(scene, E1, retry)


@pytest.mark.parametrize(
    "what", ["of another consumer", "of a later delivery", "settled", "never delivered", "unknown"]
)
async def test_what_is_not_this_delivery_is_refused_and_not_touched(scene: Scene, what: str) -> None:
    await scene.stalled()
    if what == "of another consumer":
        await scene.deliver(E1, consumer="w2")
    elif what == "of a later delivery":
        await scene.deliver(E1, times=2)
    elif what == "settled":
        await scene.client.xack("orders", "billing", E1)
    elif what == "never delivered":
        await scene.client.xack("orders", "billing", E1)
        await scene.add()
    before = await scene.state()
    asked = {"never delivered": E2, "unknown": E3}.get(what, E1)
    assert await scene.extend(asked) == [REFUSED]
    assert await scene.state() == before
    assert not any([await is_extended(scene, one) for one, _, _ in await scene.pending()])


async def test_a_late_heartbeat_takes_nothing_back_that_was_recovered(scene: Scene) -> None:
    await scene.stalled()
    reply = await scene.recover(E1)
    new_entry = reply[1][1].decode()
    before = await scene.state()
    assert await scene.extend(E1, new_entry) == [REFUSED, REFUSED]
    assert await scene.state() == before


async def test_what_was_extended_is_not_due_for_recovery(scene: Scene) -> None:
    await scene.stalled()
    await scene.extend(E1)
    [_, [code, *_]] = await scene.recover(E1)
    assert code == 4


async def test_a_deleted_payload_is_told_and_its_entry_stays_pending(scene: Scene) -> None:
    await scene.stalled()
    await scene.stalled()
    await scene.client.xdel("orders", E1)
    assert await scene.extend(E1, E2) == [PAYLOAD_GONE, EXTENDED]
    assert await scene.pending() == [(E1, "w1", 1), (E2, "w1", 1)]
    assert not await is_extended(scene, E1)


async def test_workers_prove_their_life_when_memory_is_full(scene: Scene) -> None:
    await scene.stalled()
    await scene.fill_memory()
    results = await scene.extend(E1)
    await scene.free_memory()
    assert (results, await is_extended(scene, E1)) == ([EXTENDED], True)


async def test_a_group_that_was_destroyed_is_an_error(scene: Scene) -> None:
    await scene.stalled()
    await scene.client.xgroup_destroy("orders", "billing")
    with pytest.raises(Exception, match="NOGROUP"):
        await scene.extend(E1)
