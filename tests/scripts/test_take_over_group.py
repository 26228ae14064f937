"""take_over_group.lua: a leader installs its fence, unless a later term or another namespace is there."""

from typing import Any

import pytest

from tests.scripts.scene import Scene, entry_id
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

AGREEMENT = {
    "policy": "stream",
    "visibility_ms": "30000",
    "max_deliveries": "3",
    "recovery": "reaper",
    "served_until": "now",
    "serves_for": "20000",
    "version": "now",
}
FIRST = {**AGREEMENT, "former_until": "now"}


async def take_over(
    scene: Scene,
    *,
    token: int = 7,
    holder: str = "alice",
    namespace: str = "reaper",
    policy: str = "stream",
    visibility_ms: int = 30_000,
    recreate: bool = False,
) -> list[Any]:
    """Return code, detail, the former settings, and where the group was created, as text."""
    keys = scene.keys
    reply = await load_script("reaper", "take_over_group").run(
        scene.client,
        [keys.stream, keys.lease, keys.agreement, keys.retry],
        [namespace, token, holder, keys.group, policy, visibility_ms, 3, "reaper", 20_000, int(recreate)],
    )
    return [part.decode() if isinstance(part, bytes) else part for part in reply]


@pytest.fixture
async def scene(scene: Scene) -> Scene:
    """A group without a leader so far."""
    await scene.client.delete(scene.keys.lease)
    return scene


async def test_the_first_leader_installs_its_fence_and_what_is_agreed(scene: Scene) -> None:
    assert await take_over(scene) == [1, "", "", "", "", "", ""]
    assert await scene.state() == {
        "orders": {"entries": [], "billing": []},
        "{orders}:lease:billing": "reaper:7:alice",
        "{orders}:group:billing": {"fence_token": "7", **FIRST},
    }


async def test_a_later_term_replaces_an_earlier_one_and_learns_what_was_agreed(scene: Scene) -> None:
    await take_over(scene, visibility_ms=5_000)
    assert await take_over(scene, token=8, holder="bob") == [1, "", "stream", "5000", "3", "reaper", ""]
    state = await scene.state()
    assert state["{orders}:lease:billing"] == "reaper:8:bob"
    assert state["{orders}:group:billing"] == {"fence_token": "8", **FIRST}


async def test_a_take_over_whose_reply_was_lost_can_be_repeated(scene: Scene) -> None:
    await take_over(scene)
    before = await scene.state()
    assert (await take_over(scene))[0] == 1
    assert await scene.state() == before


@pytest.mark.parametrize(("token", "holder"), [(6, "bob"), (6, "alice"), (7, "bob")])
async def test_a_term_that_is_not_later_is_refused(scene: Scene, token: int, holder: str) -> None:
    await take_over(scene)
    before = await scene.state()
    assert await take_over(scene, token=token, holder=holder) == [2, 7]
    assert await scene.state() == before


@pytest.mark.parametrize(("token", "holder"), [(6, "bob"), (7, "bob"), (7, "alice")])
async def test_a_fence_that_was_evicted_lets_nobody_back_in(scene: Scene, token: int, holder: str) -> None:
    await take_over(scene)
    await scene.client.delete(scene.keys.lease)
    before = await scene.state()
    assert await take_over(scene, token=token, holder=holder) == [2, 7]
    assert await scene.state() == before
    assert (await take_over(scene, token=8, holder=holder))[0] == 1


@pytest.mark.parametrize(("token", "holder"), [(6, "bob"), (6, "alice"), (7, "bob")])
async def test_where_the_agreement_was_lost_the_fence_alone_lets_nobody_back_in(
    scene: Scene, token: int, holder: str
) -> None:
    await take_over(scene)
    await scene.client.delete(scene.keys.agreement)
    before = await scene.state()
    assert await take_over(scene, token=token, holder=holder) == [2, 7]
    assert await scene.state() == before
    assert (await take_over(scene))[0] == 1


@pytest.mark.parametrize(("found", "named"), [("other:1:alice", "other"), ("who is this", "who is this")])
async def test_a_group_of_another_namespace_is_refused(scene: Scene, found: str, named: str) -> None:
    await scene.client.set(scene.keys.lease, found)
    before = await scene.state()
    assert await take_over(scene) == [3, named]
    assert await scene.state() == before


async def test_numbers_are_compared_as_such(scene: Scene) -> None:
    await take_over(scene, token=9)
    assert (await take_over(scene, token=10, holder="bob"))[0] == 1


async def test_a_holder_may_have_colons_in_its_name(scene: Scene) -> None:
    await take_over(scene, holder="host:1:x")
    assert (await take_over(scene, holder="host:1:x"))[0] == 1
    assert await take_over(scene, holder="host:1:y") == [2, 7]


async def test_a_policy_that_cannot_work_here_is_reported(scene: Scene) -> None:
    await scene.client.xgroup_create("orders", "audit", "0")
    assert (await take_over(scene))[:2] == [1, "several_groups"]
    assert (await take_over(scene, policy="retry-stream"))[:2] == [1, ""]


async def test_explicit_ids_are_reported(scene: Scene) -> None:
    await scene.add(at="5-1")
    assert (await take_over(scene))[:2] == [1, "explicit_ids"]


async def test_an_empty_stream_that_a_library_made_by_one_entry_is_served(scene: Scene) -> None:
    """As walrus makes it; and a group on it, which begins there."""
    for made in ("0-1", "5-1"):
        await scene.client.delete("orders")
        await scene.add(at=made)
        await scene.client.xdel("orders", made)
        await scene.client.xgroup_create("orders", "billing", "0")
        knows = made == "0-1" or "entries-added" in await scene.client.xinfo_stream("orders")
        assert (await take_over(scene))[:2] == [1, "" if knows else "explicit_ids"]


async def test_a_stream_of_explicit_ids_that_is_empty_by_now_is_not(scene: Scene) -> None:
    for made in ("5-1", "6-1"):
        await scene.add(at=made)
        await scene.client.xdel("orders", made)
    assert (await take_over(scene))[:2] == [1, "explicit_ids"]


async def test_the_retry_stream_is_made_with_its_group_where_the_policy_needs_it(scene: Scene) -> None:
    await take_over(scene, policy="retry-stream")
    assert (await scene.state())["{orders}:retry:billing"] == {"entries": [], "billing": []}


async def test_a_stream_that_does_not_exist_yet_can_be_served(scene: Scene) -> None:
    await scene.client.delete("orders")
    assert (await take_over(scene))[:2] == [1, ""]
    assert "orders" not in await scene.state()


async def test_what_else_is_remembered_of_the_group_stays(scene: Scene) -> None:
    await scene.agree(paused="1", recovered="5", last_id="1-1")
    await take_over(scene)
    agreement = (await scene.state())["{orders}:group:billing"]
    assert {"paused": "1", "recovered": "5", "last_id": "1-1"}.items() <= agreement.items()


async def test_a_key_that_is_no_stream_is_an_error_and_changes_nothing(scene: Scene) -> None:
    await scene.client.delete("orders")
    await scene.client.set("orders", "in the way")
    before = await scene.state()
    with pytest.raises(Exception, match="WRONGTYPE"):
        await take_over(scene)
    assert await scene.state() == before


async def test_a_leader_can_take_over_when_memory_is_full(scene: Scene) -> None:
    await scene.fill_memory()
    reply = await take_over(scene, policy="retry-stream")
    await scene.free_memory()
    assert (reply[0], "{orders}:retry:billing" in await scene.state()) == (1, True)


async def agreed(scene: Scene, name: str) -> int | None:
    """Return a number of the agreement."""
    value = await scene.client.hget(scene.keys.agreement, name)
    return None if value is None else int(value)


async def test_an_agreement_gets_a_version_and_keeps_it_until_something_changes(scene: Scene) -> None:
    await take_over(scene)
    first = await agreed(scene, "version")
    assert first is not None
    assert abs(first - await scene.now_ms()) < 5_000
    await take_over(scene, token=8, holder="bob")
    assert await agreed(scene, "version") == first
    await scene.agree(version=first + 10**9)  # the clock went back
    await take_over(scene, token=9, visibility_ms=60_000)
    assert await agreed(scene, "version") == first + 10**9 + 1


async def test_what_was_agreed_on_is_kept_for_a_while_where_it_is_shortened(scene: Scene) -> None:
    await scene.agree(policy="stream", visibility_ms=60_000, max_deliveries=5, recovery="reaper")
    await take_over(scene, visibility_ms=20_000)
    assert (await agreed(scene, "former_visibility_ms"), await agreed(scene, "former_max_deliveries")) == (60_000, 5)
    await take_over(scene, token=8, visibility_ms=6_000)
    assert await agreed(scene, "former_visibility_ms") == 60_000, "the longest of those that somebody may go by"
    until = await agreed(scene, "former_until")
    assert until is not None
    assert 30_000 < until - await scene.now_ms() <= 35_000
    await scene.agree(former_until=1)
    await take_over(scene, token=9, visibility_ms=4_000)
    assert await agreed(scene, "former_visibility_ms") == 6_000


async def test_the_first_settings_keep_what_workers_assumed_that_came_before(scene: Scene) -> None:
    await scene.agree(former_visibility_ms=60_000, former_max_deliveries=5)
    await take_over(scene)
    assert await agreed(scene, "former_until") is not None
    assert (await agreed(scene, "former_visibility_ms"), await agreed(scene, "former_max_deliveries")) == (60_000, 5)


async def test_without_earlier_settings_and_workers_nothing_former_counts(scene: Scene) -> None:
    await take_over(scene)
    assert await agreed(scene, "former_visibility_ms") is None


async def test_what_is_raised_needs_no_patience(scene: Scene) -> None:
    await scene.agree(policy="stream", visibility_ms=6_000, max_deliveries=2, recovery="reaper")
    await take_over(scene)
    assert await agreed(scene, "former_until") is None


# ---- a group that was destroyed


async def destroyed(scene: Scene, *, last_id: str | None = None) -> None:
    """Let the group be destroyed after it has delivered the first of two entries."""
    for _ in range(2):
        await scene.add()
    await scene.client.xgroup_destroy("orders", "billing")
    await scene.agree(last_id=last_id or entry_id(1))


async def ready(scene: Scene) -> list[str]:
    """Return what the group delivers."""
    reply: Any = await scene.client.xreadgroup("billing", "w1", {"orders": ">"})
    return [one.decode() for one, _ in reply[0][1]]


async def test_a_destroyed_group_is_created_again_where_it_stood_if_that_is_wanted(scene: Scene) -> None:
    await destroyed(scene)
    assert (await take_over(scene))[-1] == ""
    assert not await scene.client.xinfo_groups("orders")
    assert (await take_over(scene, recreate=True))[-1] == entry_id(1)
    assert (await take_over(scene, recreate=True))[-1] == ""
    assert await ready(scene) == [entry_id(2)]


@pytest.mark.parametrize("is_there", [True, False])
async def test_in_a_stream_that_was_made_anew_the_group_begins_at_the_beginning(scene: Scene, is_there: bool) -> None:
    """The IDs of a producer may lie below the position of before, and no worker would ever read them."""
    await scene.client.delete("orders")
    await scene.agree(last_id="5-9")
    if is_there:
        await scene.add(at="5-1")
    assert (await take_over(scene, recreate=True))[-1] == "0"
    if not is_there:
        await scene.add(at="5-1")
    assert await ready(scene) == ["5-1"]


@pytest.mark.parametrize("last_id", ["somewhere", None])
async def test_without_a_known_position_no_group_is_created(scene: Scene, last_id: str | None) -> None:
    await destroyed(scene, last_id=last_id)
    if last_id is None:
        await scene.client.delete(scene.keys.agreement)
    assert (await take_over(scene, recreate=True))[::6] == [1, ""]
    assert not await scene.client.xinfo_groups("orders")


async def test_a_group_is_created_again_when_memory_is_full(scene: Scene) -> None:
    await destroyed(scene)
    await scene.fill_memory()
    reply = await take_over(scene, recreate=True)
    await scene.free_memory()
    assert reply[-1] == entry_id(1)
