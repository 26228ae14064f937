"""recover_entries.lua: pending and overdue becomes ready, suspect or dead; anything else stays as it is."""

from typing import Any

import pytest

from tests.scripts.scene import BINARY, FENCE, TOO_MANY, Scene, Word, dead, details, entry_id, ready, rows, shown
from tests.support.dump import BASE_MS
from workers.protocol.events import decode_entry
from workers.protocol.messages import Metadata, pair_up, read_metadata, text

pytestmark = pytest.mark.anyio

GONE, REDELIVERED, SUSPECTED, DEAD, NOT_DUE, LOST, HELD, PUT_OFF = range(8)
NOT_SETTLED = "not settled within the visibility timeout"
E1 = entry_id(1)


def event(name: str, job: str, *, delivery: int = 1, generation: int = 0, **more: Any) -> Any:
    data = {
        "group": "billing",
        "mode": "reaper",
        "token": 7,
        "visibility_ms": 30_000,
        "entry": job,
        "consumer": "w1",
        "delivery": delivery,
        "generation": generation,
        "enqueued_ms": int(job.split("-")[0]),
    }
    return name, job, data | more


async def next_millisecond(scene: Scene) -> None:
    """Wait until the server's clock shows another millisecond."""
    moment = await scene.now_ms()
    while await scene.now_ms() == moment:
        pass


async def test_an_overdue_delivery_is_copied_to_the_tail_and_leaves_its_place(scene: Scene) -> None:
    payload = ("n", 1, "n", 2, BINARY, BINARY, "traceparent", "00-ab-cd-03")
    await scene.stalled(*payload)
    reply = await scene.recover(E1)
    assert rows(reply) == [(REDELIVERED, "w1", E1, 1)]
    assert await scene.state() == {
        "orders": {"entries": [("new-1", *ready(E1, 1, "w1", *payload))], "billing": []},
        "{orders}:fence:billing": FENCE,
        "{orders}:group:billing": {"recovered": "1"},
        "{orders}:journal": [event("recovered", E1, reason="visibility_timeout", new_entry="new-1")],
    }


async def test_with_a_retry_stream_nothing_of_the_stream_is_deleted(scene: Scene) -> None:
    await scene.stalled("n", 1)
    assert rows(await scene.recover(E1, policy="retry-stream")) == [(REDELIVERED, "w1", E1, 1)]
    state = await scene.state()
    assert state["orders"] == {"entries": [(E1, "n", "1")], "billing": []}
    assert state["{orders}:retry:billing"] == {"entries": [("new-1", *ready(E1, 1, "w1", "n", 1))]}


@pytest.mark.parametrize(("policy", "target"), [("stream", "orders"), ("retry-stream", "{orders}:retry:billing")])
async def test_what_stalls_in_the_retry_stream_is_replaced_by_its_copy(scene: Scene, policy: str, target: str) -> None:
    retry = scene.keys.retry
    await scene.client.xgroup_create(retry, "billing", "0", mkstream=True)
    await scene.add("n", 1, stream=retry)
    await scene.deliver(E1, stream=retry)
    assert rows(await scene.recover(E1, source=retry, policy=policy)) == [(REDELIVERED, "w1", E1, 1)]
    state = await scene.state()
    assert state[target]["entries"] == [("new-1", *ready(E1, 1, "w1", "n", 1))]
    assert await scene.pending(retry) == []
    assert await scene.client.xlen(retry) == (policy == "retry-stream")


async def test_job_generation_first_time_and_consumers_travel_with_the_job(scene: Scene) -> None:
    ours = ("reaper.job", "J", "reaper.deliveries", 3, "reaper.generation", 2, "reaper.first_ms", 5)
    await scene.stalled(*ours, "n", 1, "reaper.consumers", "a,b")
    assert rows(await scene.recover(E1, max_deliveries=9)) == [(REDELIVERED, "w1", "J", 4)]
    state = await scene.state()
    copied = ready("J", 4, "a,b,w1", "n", 1, first_ms=5, generation=2)
    assert state["orders"]["entries"] == [("new-1", *copied)]
    assert state["{orders}:journal"][0][1:] == (
        "J",
        event("", E1, delivery=4, generation=2)[2]
        | {"enqueued_ms": 5, "reason": "visibility_timeout", "new_entry": "new-1"},
    )


async def test_a_delivery_that_is_not_due_is_left_alone(scene: Scene) -> None:
    added = await scene.add()
    await scene.deliver(added, idle_ms=10_000)
    before = await scene.state()
    reply = await scene.recover(added, visibility_ms=30_000)
    assert (reply[1][0], 19_000 < reply[1][1] <= 20_000) == (NOT_DUE, True)
    assert await scene.state() == before


async def test_a_job_may_ask_for_a_longer_visibility_timeout(scene: Scene) -> None:
    added = await scene.stalled("reaper.visibility_ms", 100_000)
    before = await scene.state()
    reply = await scene.recover(added)
    assert (reply[1][0], 39_000 < reply[1][1] <= 40_000) == (NOT_DUE, True)
    assert await scene.state() == before


NEVER_MS = 999_999_999_999_999


async def test_what_a_job_may_ask_for_is_bounded_and_told(scene: Scene) -> None:
    added = await scene.stalled("reaper.visibility_ms", NEVER_MS)
    before = await scene.state()
    [_, row] = await scene.recover(added, longest_ms=100_000)
    assert (row[0], 39_000 < row[1] <= 40_000, row[6:]) == (NOT_DUE, True, [None, NEVER_MS])
    assert await scene.state() == before
    [_, row] = await scene.recover(added, longest_ms=60_000)
    assert (row[0], row[6:]) == (REDELIVERED, [None, NEVER_MS])


async def test_the_bound_never_shortens_the_groups_own_visibility_timeout(scene: Scene) -> None:
    added = await scene.stalled("reaper.visibility_ms", NEVER_MS)
    [_, row] = await scene.recover(added, longest_ms=1, visibility_ms=100_000)
    assert (row[0], 39_000 < row[1] <= 40_000) == (NOT_DUE, True)


@pytest.mark.parametrize("asked", [1, -5, "soon", "", 10**16])
async def test_a_visibility_timeout_that_is_shorter_or_garbage_changes_nothing(scene: Scene, asked: str | int) -> None:
    added = await scene.stalled("reaper.visibility_ms", asked)
    assert rows(await scene.recover(added)) == [(REDELIVERED, "w1", added, 1)]
    assert (await scene.state())["orders"]["entries"][0][1:3] == ("reaper.visibility_ms", str(asked))


async def test_what_is_not_pending_any_more_is_gone(scene: Scene) -> None:
    await scene.stalled()
    await scene.client.xack("orders", "billing", E1)
    before = await scene.state()
    assert rows(await scene.recover(E1, entry_id(99))) == [(GONE,), (GONE,)]
    assert await scene.state() == before


async def test_an_id_that_is_given_twice_is_recovered_once(scene: Scene) -> None:
    await scene.stalled("n", 1)
    assert rows(await scene.recover(E1, E1, policy="retry-stream")) == [(REDELIVERED, "w1", E1, 1), (GONE,)]
    assert await scene.client.xlen(scene.keys.retry) == 1


async def test_a_deleted_payload_is_acknowledged_and_reported(scene: Scene) -> None:
    await scene.stalled()
    await scene.client.xdel("orders", E1)
    assert rows(await scene.recover(E1)) == [(LOST, "w1", E1, 1)]
    assert await scene.state() == {
        "orders": {"entries": [], "billing": []},
        "{orders}:fence:billing": FENCE,
        "{orders}:group:billing": {"lost_payload": "1", "lost_payload_ms": "now"},
        "{orders}:journal": [event("lost_payload", E1, enqueued_ms=0)],
    }


async def test_a_job_before_its_last_delivery_is_parked_as_a_suspect(scene: Scene) -> None:
    await scene.stalled("n", 1, BINARY, BINARY, times=2)
    assert rows(await scene.recover(E1)) == [(SUSPECTED, "w1", E1, 2)]
    payload = ("n", "1", shown(BINARY), shown(BINARY))
    assert await scene.state() == {
        "orders": {"entries": [], "billing": []},
        "{orders}:scheduled:billing": [("parked", "suspect", E1, 2, 0, BASE_MS + 1, "w1", E1, payload)],
        "{orders}:fence:billing": FENCE,
        "{orders}:group:billing": {"recovered": "1"},
        "{orders}:journal": [event("suspected", E1, delivery=2, reason="last_delivery")],
    }


async def test_suspects_are_parked_in_order(scene: Scene) -> None:
    ids = [await scene.stalled(times=2) for _ in range(3)]
    for one in ids:
        await scene.recover(one)
        await next_millisecond(scene)
    assert [row[2] for row in (await scene.state())["{orders}:scheduled:billing"]] == ids


async def test_a_job_after_its_last_delivery_is_dead_lettered_whole(scene: Scene) -> None:
    payload: tuple[Word, ...] = ("n", 1, "n", 2, BINARY, BINARY)
    await scene.doomed(*payload)
    assert rows(await scene.recover(E1)) == [(DEAD, "w1", E1, 3)]
    letter = (*ready(E1, 3, "w1", *payload, copies=0), *dead(E1, "max_deliveries", NOT_SETTLED))
    assert await scene.state() == {
        "orders": {"entries": [(E1, *map(shown, payload))], "billing": []},
        "{orders}:dead:billing": {"entries": [("new-1", *letter)]},
        "{orders}:fence:billing": FENCE,
        "{orders}:group:billing": {"suspects_settled": "0"},
        "{orders}:journal": [event("dead_lettered", E1, delivery=3, reason="max_deliveries", dead_letter="new-1")],
    }


async def test_with_a_single_delivery_allowed_the_first_crash_is_the_end(scene: Scene) -> None:
    await scene.stalled()
    assert rows(await scene.recover(E1, max_deliveries=1)) == [(DEAD, "w1", E1, 1)]


@pytest.mark.parametrize(
    ("deliveries", "code", "count"),
    [(99, SUSPECTED, 2), (1, SUSPECTED, 2), ("many", REDELIVERED, 1), (-4, REDELIVERED, 1), ("", REDELIVERED, 1),
     (10**15, REDELIVERED, 1), ("1e3", REDELIVERED, 1), (" 1", REDELIVERED, 1), (b"\xff", REDELIVERED, 1)],
)  # fmt: skip
async def test_a_count_from_outside_is_cut_so_that_every_entry_was_run_once(
    scene: Scene, deliveries: Any, code: int, count: int
) -> None:
    await scene.stalled("reaper.deliveries", deliveries)
    assert rows(await scene.recover(E1)) == [(code, "w1", E1, count)]


@pytest.mark.parametrize("job", ["", "x" * 257, b"\xff" * 300], ids=["empty", "long", "binary and long"])
async def test_a_job_id_that_cannot_be_one_is_replaced_by_the_entry_id(scene: Scene, job: Any) -> None:
    await scene.stalled("reaper.job", job, "n", 1)
    assert rows(await scene.recover(E1)) == [(REDELIVERED, "w1", E1, 1)]
    assert (await scene.state())["orders"]["entries"] == [("new-1", *ready(E1, 1, "w1", "n", 1))]


async def test_of_a_reserved_field_that_is_there_twice_the_last_one_counts(scene: Scene) -> None:
    await scene.stalled("reaper.job", "A", "n", 1, "reaper.job", "B")
    assert rows(await scene.recover(E1)) == [(REDELIVERED, "w1", "B", 1)]
    copied = ready("B", 1, "w1", "n", 1, first_ms=BASE_MS + 1)
    assert (await scene.state())["orders"]["entries"] == [("new-1", *copied)]


async def test_a_strange_consumer_name_is_recorded_and_harms_nothing(scene: Scene) -> None:
    await scene.stalled("n", 1, consumer='a,"b\n\x00')
    assert rows(await scene.recover(E1)) == [(REDELIVERED, 'a,"b\n\x00', E1, 1)]
    state = await scene.state()
    assert state["orders"]["entries"][0][-3] == 'a_"b__'
    assert state["{orders}:journal"][0][2]["consumer"] == 'a,"b\n\x00'


@pytest.mark.parametrize(
    ("limit", "code"), [(3, REDELIVERED), (2, SUSPECTED), (1, DEAD)], ids=["to redeliver", "to park", "to dead-letter"]
)
async def test_an_entry_with_too_many_fields_is_held_and_its_neighbours_are_served(
    scene: Scene, limit: int, code: int
) -> None:
    ids = [await scene.stalled(*(TOO_MANY if n == 50 else ())) for n in range(100)]
    reply = await scene.recover(*ids, max_deliveries=limit)
    held = [n for n, row in enumerate(rows(reply)) if row[0] == HELD]
    assert (held, details(reply)[50]) == ([50], "too many fields")
    assert {row[0] for n, row in enumerate(rows(reply)) if n != 50} == {code}
    assert await scene.pending() == [(ids[50], "w1", 1)]


@pytest.mark.parametrize("words", [6_988, 6_990, 19_988], ids=["unpacked", "a little more", "the largest"])
async def test_a_large_entry_takes_every_way_whole(scene: Scene, words: int) -> None:
    """It is made ready, parked, let out and given up; Lua's unpack() gives no more than some 8,000 words at once."""
    payload = tuple(f"f{number}" for number in range(words))
    entry = await scene.stalled(*payload)
    for code, more in ((REDELIVERED, -12), (SUSPECTED, -14), (DEAD, -14)):
        assert rows(await scene.recover(entry))[0][0] == code
        if code == SUSPECTED:
            assert (await scene.release())[:3] == [b"ok", 0, 1]
        newest: Any = await scene.client.xrevrange(scene.keys.stream, count=1)
        assert tuple(map(text, newest[0][1]))[:more] == payload
        reply: Any = await scene.client.xreadgroup("billing", "w1", {scene.keys.stream: ">"})
        if reply:
            entry = text(reply[0][1][0][0])
            await scene.deliver(entry)
    letters: Any = await scene.client.xrange(scene.keys.dead)
    assert tuple(map(text, letters[0][1]))[:words] == payload


async def test_scattered_entries_are_found_among_others(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(200)]
    wanted = [one for n, one in enumerate(ids) if n % 7 in (0, 1, 4) or n > 150]
    reply = await scene.recover(*wanted)
    assert {row[0] for row in rows(reply)} == {REDELIVERED}
    assert [one for one, _, _ in await scene.pending()] == [one for one in ids if one not in wanted]


async def test_what_is_too_much_for_one_call_is_put_off(scene: Scene) -> None:
    ids = [await scene.stalled("n", "x" * 99) for _ in range(20)]
    reply = await scene.recover(*ids, budget_bytes=250)
    assert [row[0] for row in rows(reply)] == [REDELIVERED] * 3 + [PUT_OFF] * 17
    assert [one for one, _, _ in await scene.pending()] == ids[3:]


@pytest.mark.parametrize("found", [None, "reaper:8:bob", "reaper:6:bob", "reaper:7:bob", "other:7:alice", "garbage"])
async def test_only_the_whole_fence_opens_the_door(scene: Scene, found: str | None) -> None:
    await scene.stalled()
    await scene.client.delete(scene.keys.fence)
    if found:
        await scene.client.set(scene.keys.fence, found)
    before = await scene.state()
    assert await scene.recover(E1) == [b"stale", (found or "").encode()]
    refused = {"group": "billing", "verb": "recover", "token": 7, "fence": found or "", "entries": 1}
    counted = {**before.get("{orders}:group:billing", {}), "refused": "1"}
    journalled = {"{orders}:journal": [("refused", "", refused)], "{orders}:group:billing": counted}
    assert await scene.state() == before | journalled


async def test_a_paused_group_is_left_alone(scene: Scene) -> None:
    await scene.stalled()
    await scene.agree(paused="1")
    before = await scene.state()
    assert await scene.recover(E1) == [b"paused"]
    assert await scene.state() == before


async def test_a_second_group_forbids_copies_in_the_stream(scene: Scene) -> None:
    await scene.stalled()
    await scene.client.xgroup_create("orders", "audit", "0")
    before = await scene.state()
    assert await scene.recover(E1) == [b"refused", b"several_groups"]
    assert await scene.state() == before
    assert rows(await scene.recover(E1, policy="retry-stream")) == [(REDELIVERED, "w1", E1, 1)]


@pytest.mark.parametrize("explicit", ["5-1", "9999999999999-0"], ids=["low", "far future"])
async def test_explicit_ids_forbid_copies_in_the_stream(scene: Scene, explicit: str) -> None:
    await scene.add(at=explicit)
    await scene.deliver(explicit)
    before = await scene.state()
    assert await scene.recover(explicit) == [b"refused", b"explicit_ids"]
    assert await scene.state() == before
    assert [row[0] for row in rows(await scene.recover(explicit, policy="retry-stream"))] == [REDELIVERED]


async def test_plain_jobs_are_told_together_by_consumer_and_delivery_count(scene: Scene) -> None:
    ids = [await scene.stalled("n", n, times=1 + (n == 20), consumer="w2" if n % 10 == 3 else "w1") for n in range(75)]
    assert {code for code, *_ in rows(await scene.recover(*ids, max_deliveries=4))} == {REDELIVERED}
    entries = await journal_of(scene)
    events = [decode_entry(*entry) for entry in entries]
    assert sorted(map(len, events)) == [1, 2, 8, 32, 32]
    assert max(len(flat[-1]) for _, flat in entries) <= 2_048
    copies = {metadata.job_id: copy for copy, metadata in await copies_of(scene)}
    said = {one.job: one for together in events for one in together}
    assert set(said) == set(ids)
    for n, one in enumerate(ids):
        data = dict(said[one].data)
        assert 60_000 <= data.pop("idle_ms") < 120_000
        v = 1 if n == 20 else 2
        _, _, expected = event("recovered", one, delivery=1 + (n == 20), reason="visibility_timeout")
        owner = "w2" if n % 10 == 3 else "w1"
        assert data == {**expected, "consumer": owner, "new_entry": copies[one.encode()], "v": v}


async def journal_of(scene: Scene) -> list[tuple[bytes, list[bytes]]]:
    """Return the entries of the journal as they are; ``data`` comes last."""
    entries: Any = await scene.client.xrange(scene.keys.journal)
    return [(one, flat) for one, flat in entries]


async def copies_of(scene: Scene) -> list[tuple[str, Metadata]]:
    """Return the entries of the stream, with what they say of their jobs."""
    found: Any = await scene.client.xrange("orders")
    return [(one.decode(), read_metadata(one, pair_up(flat))) for one, flat in found]


async def test_names_of_consumers_and_long_ids_leave_an_entry_of_the_journal_small(scene: Scene) -> None:
    ids = [f"{2**63 + n}-{2**63}" for n in range(40)]
    for one in ids:
        await scene.client.xadd("orders", {"n": "1"}, id=one)
        await scene.deliver(one, consumer='a,"b')
    await scene.recover(*ids, policy="in-place")
    entries = await journal_of(scene)
    assert max(len(flat[-1]) for _, flat in entries) <= 2_048
    assert len(entries) > 1
    state = await scene.state()
    assert [(job, data["new_entry"], data["consumer"]) for _, job, data in state["{orders}:journal"]] == [
        (one, one, 'a,"b') for one in ids
    ]


async def test_a_broken_journal_stops_nothing(scene: Scene) -> None:
    await scene.client.set(scene.keys.journal, "no stream")
    ids = [await scene.stalled(), await scene.stalled(times=2), await scene.doomed()]
    assert [row[0] for row in rows(await scene.recover(*ids))] == [REDELIVERED, SUSPECTED, DEAD]
    assert (await scene.pending(), (await scene.state())["{orders}:journal"]) == ([], "no stream")


async def test_no_journal_is_written_where_it_is_off(scene: Scene) -> None:
    ids = [await scene.stalled(times=times) for times in (1, 2, 3)]
    await scene.recover(*ids, journal=False)
    await scene.recover(*ids, journal=False, fence="reaper:6:bob")
    assert "{orders}:journal" not in await scene.state()


async def test_recovery_goes_on_when_memory_is_full(scene: Scene) -> None:
    ids = [await scene.stalled(), await scene.stalled(times=2), await scene.doomed()]
    await scene.beats()
    await scene.fill_memory()
    reply = await scene.recover(*ids)
    await scene.free_memory()
    state = await scene.state()
    assert [row[0] for row in rows(reply)] == [REDELIVERED, SUSPECTED, DEAD]
    assert [name for name, _, _ in state["{orders}:journal"]] == ["suspected", "dead_lettered", "recovered"]
    assert len(state["orders"]["entries"]) == 2  # the copy, and the one that is dead: not ours to delete


@pytest.mark.parametrize("broken", ["dead", "schedule"])
async def test_what_has_no_place_to_go_stays_pending(scene: Scene, broken: str) -> None:
    await scene.client.set(getattr(scene.keys, broken), "in the way")
    added = await (scene.doomed() if broken == "dead" else scene.stalled(times=2))
    reply = await scene.recover(added)
    assert [row[0] for row in rows(reply)] == [HELD]
    assert "WRONGTYPE" in str(details(reply)[0])
    assert len(await scene.pending()) == 1


@pytest.mark.parametrize("flat", [("n", 1), ("n", 1, "reaper.job", "j1")], ids=["plain", "opened"])
async def test_a_copy_that_cannot_be_written_leaves_everything_as_it_was(scene: Scene, flat: tuple[Word, ...]) -> None:
    await scene.client.set(scene.keys.retry, "in the way")
    added = await scene.stalled(*flat)
    before = await scene.state()
    reply = await scene.recover(added, policy="retry-stream")
    assert [row[0] for row in rows(reply)] == [HELD]
    assert "WRONGTYPE" in str(details(reply)[0])
    assert await scene.state() == before


async def test_a_group_that_was_destroyed_is_an_error(scene: Scene) -> None:
    await scene.stalled()
    await scene.client.xgroup_destroy("orders", "billing")
    with pytest.raises(Exception, match="NOGROUP"):
        await scene.recover(E1)


# ---- consumers that are at work


async def test_what_a_consumer_at_work_holds_is_left_alone_up_to_an_idle_time(scene: Scene) -> None:
    young, old = await scene.stalled(consumer="web"), await scene.add()
    await scene.deliver(old, consumer="web", idle_ms=10**8)
    other = await scene.stalled(consumer="gone")
    before = await scene.state()
    reply = await scene.recover(young, old, spared={"gone": 10**9, "web": 10**9})
    assert ([row[0] for row in rows(reply)], details(reply)) == ([NOT_DUE] * 2, [30_000] * 2)
    assert await scene.state() == before
    reply = await scene.recover(young, old, other, spared={"web": 10**7})
    assert [row[:2] for row in rows(reply)] == [(NOT_DUE, "web"), (REDELIVERED, "web"), (REDELIVERED, "gone")]
    assert await scene.pending() == [(young, "web", 1)]


# ---- executions that a leader has seen


async def test_what_a_foreign_worker_holds_counts_as_often_as_the_leader_says_and_never_more_than_redis_does(
    scene: Scene,
) -> None:
    once, twice, more = [await scene.stalled(consumer="web", times=times) for times in (4, 4, 1)]
    ours = await scene.stalled(consumer="host.0123456789ab", times=3)
    reply = await scene.recover(once, f"{twice} 2", f"{more} 9", ours, by_sight=True, max_deliveries=4)
    assert rows(reply) == [
        (REDELIVERED, "web", once, 1),
        (REDELIVERED, "web", twice, 2),
        (REDELIVERED, "web", more, 1),
        (SUSPECTED, "host.0123456789ab", ours, 3),
    ]
    assert await scene.pending() == []


async def test_an_entry_that_is_given_twice_with_a_count_is_copied_once(scene: Scene) -> None:
    one = await scene.stalled(consumer="web")
    reply = await scene.recover(f"{one} 1", f"{one} 1", by_sight=True)
    assert [row[0] for row in rows(reply)] == [REDELIVERED, GONE]
