"""autoclaim.lua: a worker of an embedded group recovers what is overdue on one page of the pending entries list."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.scripts.scene import BINARY, FENCE, TOO_MANY, Scene, Word, dead, entry_id, ready, shown
from tests.support.dump import BASE_MS, Shown
from workers.protocol.keys import WAITING_CONSUMER
from workers.protocol.messages import entry_order

pytestmark = pytest.mark.anyio

REDELIVERED, SUSPECTED, DEAD, LOST, HELD = 1, 2, 3, 5, 6
NOT_SETTLED = "not settled within the visibility timeout"
E1, E2, E3 = entry_id(1), entry_id(2), entry_id(3)
EMBEDDED = {"recovery": "embedded"}


@dataclass(frozen=True)
class Page:
    """The reply, decoded. Idle times are left out of ``results`` and ``claimed``."""

    cursor: str
    soonest_ms: int
    ended: str
    waiting: int
    doubtful: int
    results: list[tuple[Any, ...]]
    """``(code, detail, consumer, job, count, entry)``"""
    claimed: list[tuple[Any, ...]]
    """``(entry, times, flat fields, consumer before)``"""
    ours: list[str]


def words(row: list[Any], *columns: int) -> tuple[Any, ...]:
    return tuple(row[n].decode("latin-1") if isinstance(row[n], bytes) else row[n] for n in columns)


async def claim(scene: Scene, *abandoned: str, **options: Any) -> Page:
    """Run ``autoclaim``, which acts."""
    ok, at, cursor, soonest, ended, waiting, doubtful, results, claimed, ours = await scene.autoclaim(
        *abandoned, **options
    )
    assert ok == b"ok"
    assert abs(at - await scene.now_ms()) < 5_000
    return Page(
        cursor.decode(),
        soonest,
        ended.decode(),
        waiting,
        doubtful,
        [words(row, 0, 1, 3, 4, 5, 6) for row in results],
        [(*words(row, 0, 1), tuple(part.decode("latin-1") for part in row[2]), *words(row, 3)) for row in claimed],
        [one.decode() for one in ours],
    )


def event(name: str, job: str, *, delivery: int = 1, **more: Any) -> tuple[str, str, Shown]:
    data = {
        "group": "billing",
        "mode": "embedded",
        "visibility_ms": 30_000,
        "entry": job,
        "consumer": "w1",
        "delivery": delivery,
        "generation": 0,
        "enqueued_ms": int(job.split("-")[0]),
    }
    return name, job, data | more


@pytest.fixture
async def scene(scene: Scene) -> Scene:
    """A group that has agreed on embedded recovery, and whose last leader is long gone."""
    await scene.client.delete(scene.keys.fence)
    await scene.agree(**EMBEDDED)
    return scene


# ---- claiming


async def test_an_overdue_delivery_is_claimed_in_its_place_counted_and_returned(scene: Scene) -> None:
    payload: tuple[Word, ...] = ("n", 1, "n", 2, BINARY, BINARY)
    await scene.stalled(*payload)
    page = await claim(scene)
    flat = tuple(shown(word) for word in payload)
    assert page == Page("", -1, "", 0, 0, [], [(E1, 2, flat, "w1")], [])
    assert await scene.state() == {
        "orders": {"entries": [(E1, *flat)], "billing": [(E1, "w2", 2)]},
        "{orders}:group:billing": {**EMBEDDED, "recovered": "1"},
        "{orders}:journal": [event("recovered", E1, reason="visibility_timeout", new_entry=E1)],
    }
    assert (await scene.idle_ms())[E1] < 5_000


async def test_runs_of_overdue_deliveries_are_claimed_between_those_that_live(scene: Scene) -> None:
    ids = [await scene.add() for _ in range(60)]
    overdue = [one for n, one in enumerate(ids) if n % 7 in (0, 1, 4) or n > 40]
    await scene.deliver(*ids, idle_ms=1_000)
    await scene.deliver(*overdue, times=1)
    page = await claim(scene, max_deliveries=9)
    assert [(one, times) for one, times, _, _ in page.claimed] == [(one, 2) for one in overdue]
    assert {one: owner for one, owner, _ in await scene.pending()} == {
        one: "w2" if one in overdue else "w1" for one in ids
    }
    assert 0 < page.soonest_ms <= 29_000


@pytest.mark.parametrize("settled_every", [0, 2, 5])
async def test_a_mass_is_claimed_whole_whatever_lies_between_in_the_stream(scene: Scene, settled_every: int) -> None:
    ids = [await scene.add("n", n) for n in range(90)]
    held = [one for n, one in enumerate(ids) if not settled_every or n % settled_every]
    for n, one in enumerate(held):
        await scene.deliver(one, times=1 + (n == 50), consumer="w1" if n < 30 else "w3")
    page = await claim(scene, room=200, max_deliveries=9)
    told = [(one, 2 + (n == 50), "w1" if n < 30 else "w3") for n, one in enumerate(held)]
    assert [(one, times, owner) for one, times, _, owner in page.claimed] == told
    assert [flat for _, _, flat, _ in page.claimed] == [("n", str(ids.index(one))) for one in held]
    assert await scene.pending() == [(one, "w2", times) for one, times, _ in told]
    assert max((await scene.idle_ms()).values()) < 5_000


async def test_what_stalls_in_the_retry_stream_is_claimed_there(scene: Scene) -> None:
    retry = scene.keys.retry
    await scene.client.xgroup_create(retry, "billing", "0", mkstream=True)
    await scene.add("n", 1, stream=retry)
    await scene.deliver(E1, stream=retry)
    page = await claim(scene, source=retry, policy="retry-stream")
    assert page.claimed == [(E1, 2, ("n", "1"), "w1")]
    assert await scene.pending(retry) == [(E1, "w2", 2)]


async def test_the_agreements_visibility_timeout_counts_not_the_callers(scene: Scene) -> None:
    await scene.stalled()
    await scene.agree(visibility_ms=90_000)
    before = await scene.state()
    page = await claim(scene, visibility_ms=1)
    assert (page.claimed, 29_000 < page.soonest_ms <= 30_000) == ([], True)
    assert await scene.state() == before


async def test_a_jobs_own_visibility_timeout_lengthens_nothing(scene: Scene) -> None:
    await scene.stalled("reaper.visibility_ms", 10**9)
    assert [one for one, *_ in (await claim(scene)).claimed] == [E1]


async def test_deliveries_that_live_are_left_alone_and_the_next_to_fall_due_is_told(scene: Scene) -> None:
    for idle_ms in (10_000, 25_000, 1_000):
        await scene.deliver(await scene.add(), idle_ms=idle_ms)
    before = await scene.state()
    page = await claim(scene)
    assert (page.claimed, 4_000 < page.soonest_ms <= 5_000) == ([], True)
    assert await scene.state() == before


# ---- our own


async def test_what_is_overdue_and_ours_is_never_claimed_unless_we_say_that_we_do_not_run_it(scene: Scene) -> None:
    ids = [await scene.stalled(consumer="w2") for _ in range(3)]
    before = await scene.state()
    assert (await claim(scene)).ours == ids
    assert await scene.state() == before
    page = await claim(scene, ids[1])
    assert ([one for one, *_ in page.claimed], page.ours) == ([ids[1]], [ids[0], ids[2]])
    assert await scene.pending() == [(ids[0], "w2", 1), (ids[1], "w2", 2), (ids[2], "w2", 1)]


# ---- the cursor


async def test_the_cursor_goes_from_page_to_page_to_the_end(scene: Scene) -> None:
    ids = [await scene.add() for _ in range(7)]
    await scene.deliver(*ids, idle_ms=1_000)
    await scene.deliver(ids[5], times=1)
    first = await claim(scene, page=3)
    assert (first.cursor, first.claimed) == (f"({ids[2]}", [])
    second = await claim(scene, page=3, cursor=first.cursor)
    assert (second.cursor, [one for one, *_ in second.claimed]) == (f"({ids[5]}", [ids[5]])
    third = await claim(scene, page=3, cursor=second.cursor)
    assert (third.cursor, third.claimed) == ("", [])


async def test_a_call_ends_in_front_of_what_there_is_no_room_for(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(5)]
    page = await claim(scene, room=2)
    assert ([one for one, *_ in page.claimed], page.cursor, page.ended) == (ids[:2], f"({ids[1]}", "room")
    again = await claim(scene, room=2, cursor=page.cursor)
    assert [one for one, *_ in again.claimed] == ids[2:4]


async def test_a_call_that_ends_in_front_of_its_first_entry_keeps_its_cursor(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(3)]
    page = await claim(scene, most=0, cursor=f"({ids[0]}")
    assert (page.cursor, page.ended) == (f"({ids[0]}", "full")


@pytest.mark.parametrize("bound", [{"most": 3}, {"budget_bytes": 250}], ids=["number", "bytes"])
async def test_a_call_is_bounded(scene: Scene, bound: dict[str, int]) -> None:
    ids = [await scene.stalled("n", "x" * 99) for _ in range(20)]
    page = await claim(scene, **bound)
    assert (len(page.claimed), page.cursor, page.ended) == (3, f"({ids[2]}", "full")


async def test_many_are_claimed_and_told_of_one_by_one_whatever_their_runs(scene: Scene) -> None:
    ids = [await scene.stalled(*(("reaper.generation", 2) if n % 9 == 0 else ("n", n))) for n in range(150)]
    await scene.client.xdel("orders", *ids[40:43])
    page = await claim(scene, room=200)
    there = [(n, one) for n, one in enumerate(ids) if one not in ids[40:43]]
    assert [(one, times, owner) for one, times, _, owner in page.claimed] == [(one, 2, "w1") for _, one in there]
    assert [row[5] for row in page.results] == ids[40:43]
    journal = (await scene.state())["{orders}:journal"]
    told = sorted((row for row in journal if row[0] == "recovered"), key=lambda row: entry_order(row[1]))
    assert len(journal) == len(ids)
    assert told == [
        event(
            "recovered", one, reason="visibility_timeout", new_entry=one, **({"v": 2} if n % 9 else {"generation": 2})
        )
        for n, one in there
    ]


# ---- without room


async def test_without_room_what_is_overdue_waits_for_a_slot_at_first(scene: Scene) -> None:
    await scene.stalled()
    before = await scene.state()
    page = await claim(scene, room=0, patience_ms=90_000)
    assert (page.waiting, page.results, page.ended, page.cursor) == (1, [], "", "")
    assert 59_000 < page.soonest_ms <= 60_000
    assert await scene.state() == before


@pytest.mark.parametrize(("policy", "target"), [("stream", "orders"), ("retry-stream", "{orders}:retry:billing")])
async def test_then_it_becomes_ready_for_anybody(scene: Scene, policy: str, target: str) -> None:
    await scene.stalled("n", 1, BINARY, BINARY)
    page = await claim(scene, room=0, patience_ms=1_000, policy=policy)
    [(code, new_entry, *rest)] = page.results
    assert (code, rest, page.waiting) == (REDELIVERED, ["w1", E1, 1, E1], 0)
    state = await scene.state()
    assert state[target]["entries"] == [("new-1", *ready(E1, 1, "w1", "n", 1, BINARY, BINARY))]
    assert state["{orders}:journal"] == [event("recovered", E1, reason="visibility_timeout", new_entry="new-1")]
    assert (await scene.pending(), state["{orders}:group:billing"]["recovered"]) == ([], "1")
    assert new_entry != E1


# ---- the end of a job


async def test_a_job_after_its_last_delivery_is_dead_lettered_whole(scene: Scene) -> None:
    payload: tuple[Word, ...] = ("n", 1, "n", 2, BINARY, BINARY)
    await scene.doomed(*payload)
    page = await claim(scene)
    assert [(code, *rest) for code, _, *rest in page.results] == [(DEAD, "w1", E1, 3, E1)]
    letter = (*ready(E1, 3, "w1", *payload, copies=0), *dead(E1, "max_deliveries", NOT_SETTLED))
    assert await scene.state() == {
        "orders": {"entries": [(E1, *map(shown, payload))], "billing": []},
        "{orders}:dead:billing": {"entries": [("new-1", *letter)]},
        "{orders}:group:billing": {**EMBEDDED, "suspects_settled": "0"},
        "{orders}:journal": [event("dead_lettered", E1, delivery=3, reason="max_deliveries", dead_letter="new-1")],
    }


async def test_a_job_before_its_last_delivery_is_parked_as_a_suspect_whatever_the_room(scene: Scene) -> None:
    await scene.stalled("n", 1, BINARY, BINARY, times=2)
    page = await claim(scene)
    assert (page.results, page.claimed, page.doubtful) == ([(SUSPECTED, "", "w1", E1, 2, E1)], [], 1)
    payload = ("n", "1", shown(BINARY), shown(BINARY))
    assert await scene.state() == {
        "orders": {"entries": [], "billing": []},
        "{orders}:scheduled:billing": [("parked", "suspect", E1, 2, 0, BASE_MS + 1, "w1", E1, payload)],
        "{orders}:group:billing": {**EMBEDDED, "recovered": "1"},
        "{orders}:journal": [event("suspected", E1, delivery=2, reason="last_delivery")],
    }


@pytest.mark.parametrize(
    ("times", "before", "max_deliveries", "became"),
    [
        (1, 0, 1, DEAD), (1, 0, 2, SUSPECTED), (1, 0, 3, "claimed"), (2, 0, 3, SUSPECTED), (1, 1, 3, SUSPECTED),
        (3, 0, 3, SUSPECTED), (2, 1, 3, SUSPECTED), (1, 99, 3, SUSPECTED), (3, 0, 9, "claimed"), (7, 0, 9, "claimed"),
        (8, 0, 9, SUSPECTED), (9, 0, 9, SUSPECTED),
    ],
)  # fmt: skip
async def test_the_limit_is_the_leaders(
    scene: Scene, times: int, before: int, max_deliveries: int, became: int | str
) -> None:
    """A claim counts the delivery to come. Nobody was let out here."""
    stalled = await scene.stalled("reaper.deliveries", before, times=times)
    page = await claim(scene, max_deliveries=max_deliveries)
    assert (["claimed"] * len(page.claimed) or [row[0] for row in page.results]) == [became]
    await scene.client.flushdb()
    await scene.prepare()
    await scene.add("reaper.deliveries", before, at=stalled)
    await scene.deliver(stalled, times=times)
    reply = await scene.recover(stalled, max_deliveries=max_deliveries)
    assert reply[1][0] == (REDELIVERED if became == "claimed" else became)


async def test_a_released_suspect_that_crashed_alone_is_guilty_and_in_company_it_is_not(scene: Scene) -> None:
    for company in (False, True):
        await scene.client.flushdb()
        await scene.prepare(fence=None)
        await scene.agree(**EMBEDDED)
        ids = [await scene.stalled("reaper.deliveries", 2) for _ in range(1 + company)]
        await scene.client.hset(scene.keys.suspects, mapping=dict.fromkeys(ids, "stream"))
        page = await claim(scene)
        assert [row[0] for row in page.results] == ([SUSPECTED, SUSPECTED] if company else [DEAD])


# ---- payloads that are gone


async def test_a_deleted_payload_is_acknowledged_and_reported_between_others(scene: Scene) -> None:
    ids = [await scene.stalled("n", n) for n in range(3)]
    await scene.client.xdel("orders", ids[1])
    page = await claim(scene)
    assert page.results == [(LOST, "", "w1", ids[1], 1, ids[1])]
    assert [one for one, *_ in page.claimed] == [ids[0], ids[2]]
    state = await scene.state()
    assert state["orders"]["billing"] == [(ids[0], "w2", 2), (ids[2], "w2", 2)]
    assert [row for row in state["{orders}:journal"] if row[0] == "lost_payload"] == [
        event("lost_payload", ids[1], enqueued_ms=0)
    ]


async def test_entries_that_xautoclaim_would_claim_for_ever_are_found_and_acknowledged(
    scene: Scene,
) -> None:
    ids = [await scene.stalled() for _ in range(5)]
    await scene.client.xtrim("orders", maxlen=0, approximate=False)
    page = await claim(scene, room=1)
    assert ([row[0] for row in page.results], [row[5] for row in page.results]) == ([LOST] * 5, ids)
    assert await scene.pending() == []


# ---- one bad entry, and what is broken


@pytest.mark.parametrize("times", [2, 3], ids=["to park", "to dead-letter"])
async def test_an_entry_with_too_many_fields_is_held_and_its_neighbours_are_served(scene: Scene, times: int) -> None:
    ids = [await scene.stalled(*(TOO_MANY if n == 5 else ()), times=times) for n in range(10)]
    page = await claim(scene)
    assert [row[:2] for row in page.results if row[0] == HELD] == [(HELD, "too many fields")]
    assert len(page.results) == 10
    assert await scene.pending() == [(ids[5], "w1", times)]
    assert page.soonest_ms == 10_000


async def test_an_entry_with_too_many_fields_to_copy_can_be_claimed(scene: Scene) -> None:
    await scene.stalled(*TOO_MANY)
    assert [one for one, *_ in (await claim(scene)).claimed] == [E1]


@pytest.mark.parametrize("before", [1, 2], ids=["to park", "to dead-letter"])
async def test_what_was_claimed_before_its_payload_was_known_goes_back_as_it_was_where_it_has_no_place_to_go(
    scene: Scene, before: int
) -> None:
    for key in (scene.keys.dead, scene.keys.schedule):
        await scene.client.set(key, "in the way")
    ids = [await scene.stalled(*(("reaper.deliveries", before) if n == 1 else ())) for n in range(3)]
    stalled_ms = (await scene.idle_ms())[ids[1]]
    page = await claim(scene, max_deliveries=3 if before == 1 else 2, room=2)
    assert ([row[0] for row in page.results], page.doubtful) == ([HELD] * len(page.results), 0)
    if before == 1:
        assert [one for one, *_ in page.claimed] == [ids[0], ids[2]], "it took no room"
        assert await scene.pending() == [(ids[0], "w2", 2), (ids[1], "w1", 1), (ids[2], "w2", 2)]
    else:
        assert await scene.pending() == [(one, "w1", 1) for one in ids]
    assert stalled_ms <= (await scene.idle_ms())[ids[1]] < stalled_ms + 5_000


async def test_an_entry_with_too_many_fields_that_says_it_had_its_deliveries_is_held_by_its_consumer(
    scene: Scene,
) -> None:
    ids = [await scene.stalled(), await scene.stalled(*TOO_MANY, "reaper.deliveries", 1), await scene.stalled()]
    page = await claim(scene)
    assert [row[:2] for row in page.results] == [(HELD, "too many fields")]
    assert await scene.pending() == [(ids[0], "w2", 2), (ids[1], "w1", 1), (ids[2], "w2", 2)]


@pytest.mark.parametrize("flat", [("n", 1), ("n", 1, "reaper.job", "j1")], ids=["plain", "opened"])
async def test_a_copy_that_cannot_be_written_leaves_its_delivery_where_it_is(
    scene: Scene, flat: tuple[str | int, ...]
) -> None:
    await scene.agree(policy="retry-stream")
    await scene.client.set(scene.keys.retry, "in the way")
    added = await scene.stalled(*flat)
    page = await claim(scene, room=0, patience_ms=0)
    assert [row[0] for row in page.results] == [HELD]
    assert await scene.pending() == [(added, "w1", 1)]


@pytest.mark.parametrize("broken", ["dead", "schedule"])
async def test_what_has_no_place_to_go_stays_pending(scene: Scene, broken: str) -> None:
    await scene.client.set(getattr(scene.keys, broken), "in the way")
    added = await (scene.doomed() if broken == "dead" else scene.stalled(times=2))
    page = await claim(scene)
    assert [row[0] for row in page.results] == [HELD]
    assert "WRONGTYPE" in page.results[0][1]
    assert await scene.pending() == [(added, "w1", 3 if broken == "dead" else 2)]


async def test_a_broken_journal_stops_nothing(scene: Scene) -> None:
    await scene.client.set(scene.keys.journal, "no stream")
    ids = [await scene.stalled(), await scene.stalled(times=2), await scene.doomed()]
    page = await claim(scene)
    assert ([one for one, *_ in page.claimed], [row[0] for row in page.results]) == ([ids[0]], [SUSPECTED, DEAD])
    assert (await scene.pending(), (await scene.state())["{orders}:journal"]) == ([(ids[0], "w2", 2)], "no stream")


async def test_no_journal_is_written_where_it_is_off(scene: Scene) -> None:
    for times in (1, 2, 3):
        await scene.stalled(times=times)
    await claim(scene, journal=False)
    assert "{orders}:journal" not in await scene.state()


async def test_recovery_goes_on_when_memory_is_full(scene: Scene) -> None:
    ids = [await scene.stalled(), await scene.stalled(times=2), await scene.doomed(), await scene.stalled()]
    await scene.beats()
    await scene.fill_memory()
    page = await claim(scene, room=1)
    rest = await claim(scene, room=0, patience_ms=0, cursor=page.cursor)
    await scene.free_memory()
    assert [one for one, *_ in page.claimed] == [ids[0]]
    assert [row[0] for row in page.results + rest.results] == [SUSPECTED, DEAD, REDELIVERED]
    assert await scene.pending() == [(ids[0], "w2", 2)]


# ---- when it may not act


@pytest.mark.parametrize("recovery", ["reaper", ""])
@pytest.mark.parametrize("fence", [FENCE, None])
async def test_where_embedded_recovery_is_not_agreed_nothing_is_done(
    scene: Scene, recovery: str, fence: str | None
) -> None:
    await scene.stalled()
    await scene.agree(recovery=recovery)
    if fence:
        await scene.client.set(scene.keys.fence, fence)
    before = await scene.state()
    assert await scene.autoclaim() == [b"reaper"]
    assert await scene.state() == before


async def test_a_paused_group_is_left_alone(scene: Scene) -> None:
    await scene.stalled()
    await scene.agree(paused="1")
    before = await scene.state()
    assert await scene.autoclaim() == [b"paused"]
    assert await scene.state() == before


async def test_a_second_group_forbids_copies_in_the_stream(scene: Scene) -> None:
    await scene.stalled()
    await scene.client.xgroup_create("orders", "audit", "0")
    before = await scene.state()
    assert await scene.autoclaim() == [b"refused", b"several_groups"]
    assert await scene.state() == before
    assert [one for one, *_ in (await claim(scene, policy="retry-stream")).claimed] == [E1]


async def test_what_rests_in_front_hides_no_second_group(scene: Scene) -> None:
    waits, overdue = await scene.stalled(consumer=WAITING_CONSUMER), await scene.stalled()
    await scene.client.zadd(scene.keys.schedule, {f"stream {waits}": await scene.now_ms() + 60_000})
    await scene.client.xgroup_create("orders", "audit", "0")
    assert await scene.autoclaim(room=0, patience_ms=0) == [b"refused", b"several_groups"]
    assert [one for one, *_ in await scene.pending()] == [waits, overdue]


async def test_what_waits_for_its_time_rests_behind_what_the_schedule_has_lost(scene: Scene) -> None:
    ids = [await scene.stalled(consumer=WAITING_CONSUMER) for _ in range(6)]
    waits = [ids[1], ids[3], ids[4]]
    due = await scene.now_ms() + 60_000
    await scene.client.zadd(scene.keys.schedule, {f"stream {one}": due for one in waits})
    page = await claim(scene, room=10)
    assert [one for one, *_ in page.claimed] == [one for one in ids if one not in waits]
    assert [one for one, owner, _ in await scene.pending() if owner == WAITING_CONSUMER] == waits


async def test_a_group_that_was_destroyed_is_an_error(scene: Scene) -> None:
    await scene.client.xgroup_destroy("orders", "billing")
    with pytest.raises(Exception, match="NOGROUP"):
        await scene.autoclaim()
