"""put_back: what a deleted consumer held is pending again where that is certain, and told of where nobody can know."""

import pytest
from redis.exceptions import ResponseError

from reaper.recovery.writer import GroupWriter, PutBack, StillCounts
from reaper.settings import ReaperSettings
from tests.scripts.scene import FENCE, TOO_MANY, Scene, entry_id
from workers.protocol.calls import Journal
from workers.protocol.calls.refusals import Refusal, RefusalKind
from workers.protocol.calls.upkeep import Authority

pytestmark = pytest.mark.anyio

OURS, FOREIGN = "host.0123456789ab", "plain"
VISIBILITY_MS = 30_000
RESTORED = "restored-by-reaper"
E1, E2, E3 = (entry_id(number) for number in (1, 2, 3))


@pytest.fixture
async def dropped(scene: Scene) -> Scene:
    """A worker of ours held three entries and settled the second; it is dead, and then its consumer was deleted."""
    for _ in range(3):
        await scene.add()
    await scene.deliver(E1, E2, E3, consumer=OURS)
    await scene.client.xack("orders", "billing", E2)
    await give_word(scene, OURS, ended_ms=60_000)
    await scene.client.xgroup_delconsumer("orders", "billing", OURS)
    return scene


async def give_word(scene: Scene, consumer: str, *, ended_ms: int) -> None:
    """Let ``consumer`` have joined with a word that ended so long ago; negative: it counts for so much longer."""
    until_ms = await scene.now_ms() - ended_ms
    await scene.agree(**{f"member:{consumer}": f"1,{VISIBILITY_MS},3,{until_ms},"})


async def put_back(
    scene: Scene,
    *ids: str,
    consumer: str = OURS,
    token: int = 7,
    made: int = 0,
    source: str = "orders",
    journal: bool = True,
) -> PutBack | StillCounts | Refusal:
    """Put ``ids`` back that ``consumer`` held."""
    (group,) = ReaperSettings(groups="orders/billing", visibility_timeout=VISIBILITY_MS / 1000).watched
    authority = Authority(namespace="reaper", token=token, holder="alice")
    writer = GroupWriter(
        client=scene.client,
        group=group,
        authority=authority,
        journal=Journal(int(journal), 1_000),
    )
    return await writer.put_back(source, consumer.encode(), [one.encode() for one in ids], made=made)


def told(entry: str, consumer: str, *, is_put_back: bool) -> tuple[str, str, dict[str, object]]:
    """Return the event of one entry, as `Scene.state` shows it."""
    data = {
        "group": "billing", "mode": "reaper", "token": 7, "entry": entry, "consumer": consumer, "generation": 0,
        "enqueued_ms": int(entry.split("-")[0]), "put_back": is_put_back,
    }  # fmt: skip
    return ("lost_delivery", entry, data)


async def test_what_it_held_is_pending_again_and_told_of(dropped: Scene) -> None:
    before = await dropped.state()
    assert await put_back(dropped, E1, E3) == PutBack(2, 0)
    after = await dropped.state()
    assert after.pop("{orders}:journal") == [told(one, OURS, is_put_back=True) for one in (E1, E3)]
    before["orders"]["billing"] = [(E1, RESTORED, 1), (E3, RESTORED, 1)]
    assert after == before
    assert all(idle_ms >= VISIBILITY_MS for idle_ms in (await dropped.idle_ms()).values())


async def test_called_twice_it_is_put_back_once(dropped: Scene) -> None:
    await put_back(dropped, E1, E3)
    before = await dropped.state()
    assert await put_back(dropped, E1, E3) == PutBack(0, 0)
    assert await dropped.state() == before


async def test_asked_about_nothing_it_does_nothing(dropped: Scene) -> None:
    before = await dropped.state()
    assert await put_back(dropped) == PutBack(0, 0)
    assert await dropped.state() == before


async def test_while_its_word_counts_nothing_is_put_back(dropped: Scene) -> None:
    await give_word(dropped, OURS, ended_ms=-5_000)
    before = await dropped.state()
    answer = await put_back(dropped, E1)
    assert isinstance(answer, StillCounts)
    assert 0 < answer.until_ms - await dropped.now_ms() <= 5_000
    assert answer.visibility_ms == VISIBILITY_MS
    assert await dropped.state() == before


async def test_while_recovery_waits_no_word_has_ended(dropped: Scene) -> None:
    """Else after a step of the clock what a live worker runs is given to others before it has held that again."""
    await give_word(dropped, OURS, ended_ms=3_600_000)
    await dropped.beats(VISIBILITY_MS)
    await dropped.agree(unbroken=await dropped.now_ms())
    answer = await put_back(dropped, E1)
    assert isinstance(answer, StillCounts)
    assert 0 < answer.until_ms - await dropped.now_ms() <= VISIBILITY_MS
    await dropped.beats(VISIBILITY_MS)
    assert await put_back(dropped, E1) == PutBack(1, 0)


async def test_where_others_live_it_is_due_a_visibility_timeout_after_its_word_ended(dropped: Scene) -> None:
    await give_word(dropped, OURS, ended_ms=10_000)
    await give_word(dropped, "host.ba9876543210", ended_ms=-5_000)
    assert await put_back(dropped, E1) == PutBack(1, 0)
    (idle_ms,) = (await dropped.idle_ms()).values()
    assert 10_000 <= idle_ms < VISIBILITY_MS


async def test_a_word_that_says_nothing_gives_whoever_lives_all_the_time(dropped: Scene) -> None:
    await dropped.agree(**{f"member:{OURS}": "junk"})
    await give_word(dropped, "host.ba9876543210", ended_ms=-5_000)
    assert await put_back(dropped, E1) == PutBack(1, 0)
    (idle_ms,) = (await dropped.idle_ms()).values()
    assert idle_ms < 10_000


async def test_who_took_his_word_away_has_left_by_himself(dropped: Scene) -> None:
    await dropped.client.hdel(dropped.keys.agreement, f"member:{OURS}")
    before = await dropped.state()
    assert await put_back(dropped, E1, E2, E3) == PutBack(0, 0)
    assert await dropped.state() == before


async def test_of_a_foreign_consumer_it_is_only_told(dropped: Scene) -> None:
    before = await dropped.state()
    assert await put_back(dropped, E1, E2, consumer=FOREIGN) == PutBack(0, 2)
    after = await dropped.state()
    assert after.pop("{orders}:journal") == [told(one, FOREIGN, is_put_back=False) for one in (E1, E2)]
    assert after == before


@pytest.mark.parametrize("what", ["held by another", "no payload", "delivered anew anyway"])
async def test_what_was_not_lost_is_left_alone(dropped: Scene, what: str) -> None:
    meant = E1
    match what:
        case "held by another":
            await dropped.deliver(E1, consumer="another")
        case "no payload":
            await dropped.client.xdel("orders", E1)
        case "delivered anew anyway":
            meant = await dropped.add()
    before = await dropped.state()
    assert await put_back(dropped, meant) == PutBack(0, 0)
    assert await dropped.state() == before


async def test_an_entry_that_is_too_large_for_a_copy_is_put_back_with_its_batch(dropped: Scene) -> None:
    large = await dropped.add(*TOO_MANY)
    await dropped.deliver(large, consumer="another")
    await dropped.client.xgroup_delconsumer("orders", "billing", "another")
    gone = await dropped.add()
    await dropped.client.xdel("orders", gone)
    assert await put_back(dropped, E1, gone, large, E3) == PutBack(3, 0)
    assert [one for one, _, _ in await dropped.pending()] == [E1, E3, large]


async def test_in_a_retry_stream_it_is_the_same(dropped: Scene) -> None:
    retry = dropped.keys.retry
    await dropped.client.xgroup_create(retry, "billing", "0", mkstream=True)
    copy = await dropped.add("n", "1", "reaper.job", "J", "reaper.generation", "2", stream=retry)
    await dropped.deliver(copy, consumer=OURS, stream=retry)
    await dropped.client.xgroup_delconsumer(retry, "billing", OURS)
    assert await put_back(dropped, copy, source=retry) == PutBack(1, 0)
    assert await dropped.pending(retry) == [(copy, RESTORED, 1)]
    ((event, job, data),) = (await dropped.state())["{orders}:journal"]
    assert (event, job, data["generation"]) == ("lost_delivery", "J", 2)


@pytest.mark.parametrize("found", [None, "reaper:8:bob", "reaper:6:bob", "reaper:7:bob", "other:7:alice"])
async def test_only_the_whole_fence_lets_a_leader_put_back(dropped: Scene, found: str | None) -> None:
    await dropped.client.delete(dropped.keys.fence)
    if found:
        await dropped.client.set(dropped.keys.fence, found)
    before = await dropped.state()
    assert await put_back(dropped, E1) == Refusal(RefusalKind.STALE, found or "")
    assert await dropped.state() == before


async def test_a_leader_of_an_earlier_term_puts_nothing_back(dropped: Scene) -> None:
    assert await put_back(dropped, E1, token=6) == Refusal(RefusalKind.STALE, FENCE)


async def test_in_a_group_that_is_another_one_nothing_is_put_back(dropped: Scene) -> None:
    await dropped.agree(made=5)
    before = await dropped.state()
    assert await put_back(dropped, E1, made=4) == Refusal(RefusalKind.MADE)
    assert await dropped.state() == before
    assert await put_back(dropped, E1, made=5) == PutBack(1, 0)


async def test_it_works_when_memory_is_full(dropped: Scene) -> None:
    await dropped.fill_memory()
    answer = await put_back(dropped, E1)
    await dropped.free_memory()
    assert answer == PutBack(1, 0)
    assert await dropped.pending() == [(E1, RESTORED, 1)]


async def test_a_journal_that_is_no_stream_stops_nothing(dropped: Scene) -> None:
    await dropped.client.set(dropped.keys.journal, "taken")
    assert await put_back(dropped, E1) == PutBack(1, 0)


async def test_without_a_journal_nothing_is_told(dropped: Scene) -> None:
    assert await put_back(dropped, E1, journal=False) == PutBack(1, 0)
    assert "{orders}:journal" not in await dropped.state()


async def test_a_stream_that_is_none_or_has_no_group_is_an_error(dropped: Scene) -> None:
    await dropped.client.xgroup_destroy("orders", "billing")
    with pytest.raises(ResponseError, match="NOGROUP"):
        await put_back(dropped, E1)
    await dropped.client.delete("orders")
    await dropped.client.set("orders", "taken")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await put_back(dropped, E1)


async def test_what_waits_is_noted_for_the_leader_that_follows_and_forgotten(dropped: Scene) -> None:
    (group,) = ReaperSettings(groups="orders/billing", visibility_timeout=VISIBILITY_MS / 1000).watched
    authority = Authority(namespace="reaper", token=7, holder="alice")
    writer = GroupWriter(client=dropped.client, group=group, authority=authority, journal=Journal(1, 1_000))
    before = await dropped.state()
    consumer, ids = b"a b,c.0123456789ab", [E1.encode(), E3.encode()]
    await writer.note_waiting("orders", consumer, ids, made=17, journal_at=b"5-0")
    await writer.note_waiting("{orders}:retry:billing", consumer, ids[:1], made=17, journal_at=b"6-0")
    assert await writer.noted_waiting("orders", made=17) == {consumer: (b"5-0", ids)}
    assert await writer.noted_waiting("{orders}:retry:billing", made=17) == {consumer: (b"6-0", ids[:1])}
    assert await writer.noted_waiting("orders", made=18) == {}, "it is another group"
    assert await dropped.pending() == [], "noting is not putting back"
    for source in ("orders", "{orders}:retry:billing"):
        await writer.note_waiting(source, consumer, (), made=17, journal_at=b"5-0")
    assert await dropped.state() == before
