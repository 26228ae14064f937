"""settle.lua: a worker's deliveries become done, ready or dead, and only its own do."""

from typing import Any

import pytest

from tests.scripts.scene import (
    BINARY,
    FENCE,
    LONG_IDLE_MS,
    TOO_MANY,
    Many,
    Scene,
    Word,
    dead,
    entry_id,
    item,
    ready,
    shown,
)

pytestmark = pytest.mark.anyio

DONE, DEAD, REFUSED, UNKNOWN, HELD, LOST = 1, 2, 0, 3, 4, 6
E1, E2, E3 = entry_id(1), entry_id(2), entry_id(3)


def event(name: str, job: str, **more: Any) -> Any:
    return name, job, {"group": "billing", "entry": job, **more}


def codes(results: Any) -> list[int]:
    """Return the code of each result: those of dead letters and held ones come with a detail."""
    if isinstance(results, int):  # every item was acknowledged
        return [DONE] * results
    return [result[0] if isinstance(result, list) else result for result in results]


async def test_an_acknowledged_entry_stays_in_the_stream_for_other_readers(scene: Scene) -> None:
    await scene.stalled("n", 1)
    assert codes(await scene.settle(item(E1, "ack"))) == [DONE]
    assert await scene.state() == {
        "orders": {"entries": [(E1, "n", "1")], "billing": []},
        "{orders}:fence:billing": FENCE,
        "{orders}:journal": [event("acked", E1)],
    }


async def test_an_acknowledged_entry_is_deleted_where_the_owner_asked_for_it(scene: Scene) -> None:
    await scene.stalled()
    assert codes(await scene.settle(item(E1, "ack"), delete_acked=True)) == [DONE]
    assert (await scene.state())["orders"] == {"entries": [], "billing": []}


async def test_nothing_is_deleted_while_another_group_reads_the_stream(scene: Scene) -> None:
    await scene.stalled("n", 1)
    await scene.client.xgroup_create("orders", "audit", "0")
    assert codes(await scene.settle(item(E1, "ack"), delete_acked=True)) == [DONE]
    assert (await scene.state())["orders"] == {"entries": [(E1, "n", "1")], "audit": [], "billing": []}


@pytest.mark.parametrize("verb", ["ack", "nack", "reject"])
async def test_what_is_settled_in_the_retry_stream_is_deleted_there(scene: Scene, verb: str) -> None:
    retry = scene.keys.retry
    await scene.client.xgroup_create(retry, "billing", "0", mkstream=True)
    await scene.add(stream=retry)
    await scene.deliver(E1, stream=retry)
    assert codes(await scene.settle(item(E1, verb), source=retry)) == [DEAD if verb == "reject" else DONE]
    state = await scene.state()
    assert await scene.pending(retry) == []
    assert [entry[0] for entry in state[retry]["entries"]] == (["new-1"] if verb == "nack" else [])
    assert state["orders"]["entries"] == []


async def test_a_nacked_job_is_copied_to_the_tail(scene: Scene) -> None:
    payload: tuple[Word, ...] = ("n", 1, "n", 2, BINARY, BINARY)
    await scene.stalled(*payload)
    assert await scene.settle(item(E1, "nack", reason="failed", error="boom")) == [DONE]
    assert await scene.state() == {
        "orders": {"entries": [("new-1", *ready(E1, 1, "w1", *payload))], "billing": []},
        "{orders}:fence:billing": FENCE,
        "{orders}:journal": [event("nacked", E1, reason="failed", new_entry="new-1")],
    }


async def test_a_nacked_job_goes_to_the_retry_stream_where_the_group_agreed_on_it(scene: Scene) -> None:
    await scene.stalled("n", 1)
    await scene.agree(policy="retry-stream")
    assert await scene.settle(item(E1, "nack"), policy="stream") == [DONE]
    state = await scene.state()
    assert state["orders"] == {"entries": [(E1, "n", "1")], "billing": []}
    assert state["{orders}:retry:billing"] == {"entries": [("new-1", *ready(E1, 1, "w1", "n", 1))]}


@pytest.mark.parametrize(("verb", "times", "reason"), [("reject", 1, "bad input"), ("nack", 3, "failed")])
async def test_a_rejected_job_and_one_that_failed_too_often_are_dead_lettered(
    scene: Scene, verb: str, times: int, reason: str
) -> None:
    payload: tuple[Word, ...] = ("n", 1, "n", 2, BINARY, BINARY)
    await scene.stalled(*payload, times=times)
    [result] = await scene.settle(item(E1, verb, times=times, reason=reason, error="ValueError: no"))
    assert result[0] == DEAD
    letter = (*ready(E1, times, "w1", *payload, copies=0), *dead(E1, reason, "ValueError: no"))
    assert await scene.state() == {
        "orders": {"entries": [(E1, *(shown(word) for word in payload))], "billing": []},
        "{orders}:dead:billing": {"entries": [("new-1", *letter)]},
        "{orders}:fence:billing": FENCE,
        "{orders}:journal": [event("dead_lettered", E1, reason=reason, dead_letter="new-1")],
    }


async def test_the_agreed_limit_counts_and_not_the_workers_own(scene: Scene) -> None:
    await scene.stalled(times=2)
    await scene.agree(max_deliveries=2)
    assert codes(await scene.settle(item(E1, "nack", times=2), max_deliveries=9)) == [DEAD]


@pytest.mark.parametrize("agreed", ["", "many", "-1", "0"])
async def test_a_limit_that_is_none_does_not_stop_settling(scene: Scene, agreed: str) -> None:
    await scene.stalled()
    await scene.agree(max_deliveries=agreed)
    assert codes(await scene.settle(item(E1, "nack"))) == [DEAD if agreed == "0" else DONE]


async def test_the_count_includes_the_deliveries_of_earlier_entries(scene: Scene) -> None:
    await scene.stalled("reaper.deliveries", 2, "reaper.job", "J")
    assert codes(await scene.settle(item(E1, "nack"))) == [DEAD]
    assert (await scene.state())["{orders}:dead:billing"]["entries"][0][1:5] == (
        "reaper.job", "J", "reaper.deliveries", "3",
    )  # fmt: skip


OWNED_BY_ANOTHER: dict[str, dict[str, Any]] = {
    "another consumer": {"consumer": "w2"},
    "a later delivery to the same consumer": {"times": 2},
}


@pytest.mark.parametrize("verb", ["ack", "nack", "reject"])
@pytest.mark.parametrize("now", OWNED_BY_ANOTHER.values(), ids=OWNED_BY_ANOTHER.keys())
async def test_a_delivery_that_is_not_ours_any_more_is_refused(scene: Scene, verb: str, now: dict[str, Any]) -> None:
    await scene.stalled("n", 1)
    await scene.deliver(E1, **now)
    before = await scene.state()
    assert await scene.settle(item(E1, verb, times=1)) == [REFUSED]
    assert await scene.state() == before | {"{orders}:journal": [event("refused", E1, verb=verb)]}


def many(*ids: str) -> Many:
    names = ",".join(f'"{one}"' for one in ids)
    return Many(ids, f'{{"v":2,"group":"billing","columns":{{"entry":[{names}]}}}}')


def events_of_many(name: str, *ids: str, **more: Any) -> list[Any]:
    return [
        (name, one, {"v": 2, "group": "billing", "entry": one, "enqueued_ms": int(one.split("-")[0]), **more})
        for one in ids
    ]


async def test_many_acknowledged_entries_are_one_entry_of_the_journal(scene: Scene) -> None:
    ids = [await scene.stalled("n", number) for number in range(1, 4)]
    assert await scene.settle(many(*ids)) == 3
    assert await scene.state() == {
        "orders": {"entries": [(one, "n", f"{number}") for number, one in enumerate(ids, start=1)], "billing": []},
        "{orders}:fence:billing": FENCE,
        "{orders}:journal": events_of_many("acked", *ids),
    }
    assert await scene.client.xlen(scene.keys.journal) == 1


async def test_of_many_entries_those_of_others_are_refused_and_told_apart(scene: Scene) -> None:
    ids = [await scene.stalled("n", number) for number in range(1, 5)]
    await scene.deliver(ids[1], consumer="w2")
    await scene.deliver(ids[3], times=2)
    assert await scene.settle(many(*ids)) == [DONE, REFUSED, DONE, REFUSED]
    assert (await scene.state())["{orders}:journal"] == [
        *events_of_many("refused", ids[1], ids[3], verb="ack"),
        *events_of_many("acked", ids[0], ids[2]),
    ]
    assert [row[0] for row in await scene.pending()] == [ids[1], ids[3]]


async def test_of_many_entries_of_others_none_is_told_to_be_acknowledged(scene: Scene) -> None:
    ids = [await scene.stalled(), await scene.stalled()]
    assert await scene.settle(many(*ids), consumer="w2") == [REFUSED, REFUSED]
    assert (await scene.state())["{orders}:journal"] == events_of_many("refused", *ids, verb="ack")


async def test_many_acknowledgements_whose_reply_was_lost_are_told_once(scene: Scene) -> None:
    ids = [await scene.stalled(), await scene.stalled()]
    await scene.settle(many(*ids))
    before = await scene.state()
    assert await scene.settle(many(*ids), reply_was_lost=True) == [UNKNOWN, UNKNOWN]
    assert await scene.state() == before


async def test_an_entry_that_comes_twice_among_many_is_told_once(scene: Scene) -> None:
    await scene.stalled()
    assert await scene.settle(many(E1, E1)) == [DONE, REFUSED]
    names = [(name, job) for name, job, _ in (await scene.state())["{orders}:journal"]]
    assert names == [("refused", E1), ("acked", E1)]


async def test_the_journal_has_what_was_acknowledged_in_the_order_of_the_call(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(6)]
    assert await scene.settle(many(*ids[:2]), item(ids[2], "ack"), many(*ids[3:5]), item(ids[5], "ack")) == 6
    assert [job for _, job, _ in (await scene.state())["{orders}:journal"]] == ids


async def test_many_are_acknowledged_without_a_journal(scene: Scene) -> None:
    ids = [await scene.stalled(), await scene.stalled()]
    assert await scene.settle(Many(tuple(ids), ""), journal=False) == 2
    assert await scene.settle(Many(tuple(ids), ""), journal=False) == [REFUSED, REFUSED]
    assert not await scene.client.exists(scene.keys.journal)


async def test_the_reply_is_a_number_where_every_item_was_acknowledged(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(3)]
    assert await scene.settle(*(item(one, "ack") for one in ids)) == 3


@pytest.mark.parametrize("order", [(3, 1, 2, 1, 3), (1, 2, 3, 3, 2, 1), (2, 2, 1, 1, 3, 3), (3, 2, 1, 1, 2, 3)])
async def test_items_may_come_in_any_order_and_an_entry_is_settled_once(scene: Scene, order: tuple[int, ...]) -> None:
    for _ in range(3):
        await scene.stalled()
    results = codes(await scene.settle(*(item(entry_id(number), "ack") for number in order)))
    first = [number not in order[:at] for at, number in enumerate(order)]
    assert results == [DONE if new else REFUSED for new in first]
    events = [name for name, _, _ in (await scene.state())["{orders}:journal"]]
    assert (events.count("acked"), events.count("refused"), await scene.pending()) == (3, len(order) - 3, [])


async def test_items_with_several_verbs_and_counts_are_answered_one_by_one(scene: Scene) -> None:
    times = [1, 1, 2, 1, 2, 1]
    ids = [await scene.stalled(times=n) for n in times]
    verbs = ["ack", "ack", "ack", "nack", "ack", "ack"]
    items = [item(one, verb, times=n) for one, verb, n in zip(ids, verbs, times, strict=True)]
    items[1] = item(ids[1], "ack", times=2)  # not the delivery that is pending
    assert codes(await scene.settle(*items)) == [DONE, REFUSED, DONE, DONE, DONE, DONE]
    assert [one for one, *_ in await scene.pending()] == [ids[1]]


async def test_entries_between_the_items_stay_pending(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(40)]
    settled = [one for at, one in enumerate(ids) if at % 3 == 1 or at > 30]
    assert await scene.settle(*(item(one, "ack") for one in settled)) == len(settled)
    assert [one for one, *_ in await scene.pending()] == [one for one in ids if one not in settled]


@pytest.mark.parametrize("between", [1, 20, 300, 1_100])
async def test_many_are_acknowledged_however_many_others_of_ours_lie_between_them(scene: Scene, between: int) -> None:
    ids = await scene.add_many(2 * between + 3)
    await scene.client.xreadgroup("billing", "w1", {"orders": ">"}, count=len(ids))
    chosen = ids[:: between + 1]
    assert await scene.settle(many(*chosen)) == 3
    left: Any = await scene.client.xpending_range("orders", "billing", "-", "+", len(ids))
    assert [row[0].decode() for row in left] == [one for one in ids if one not in chosen]
    assert [job for _, job, _ in (await scene.state())["{orders}:journal"]] == chosen


async def test_of_many_an_earlier_delivery_is_refused(scene: Scene) -> None:
    ids = [await scene.stalled(times=2), await scene.stalled(times=2)]
    assert await scene.settle(many(*ids)) == [REFUSED, REFUSED]
    assert await scene.pending() == [(one, "w1", 2) for one in ids]


async def test_a_settled_delivery_is_refused_the_second_time(scene: Scene) -> None:
    await scene.stalled()
    assert codes(await scene.settle(item(E1, "ack"))) == [DONE]
    assert await scene.settle(item(E1, "ack")) == [REFUSED]


@pytest.mark.parametrize("verb", ["ack", "nack", "reject"])
async def test_in_one_call_a_delivery_is_settled_once(scene: Scene, verb: str) -> None:
    await scene.stalled()
    results = codes(await scene.settle(item(E1, verb), item(E1, verb), item(E1, "ack")))
    assert results == [DEAD if verb == "reject" else DONE, REFUSED, REFUSED]


async def test_after_a_lost_reply_what_is_settled_is_unknown_and_not_refused(scene: Scene) -> None:
    await scene.stalled()
    await scene.stalled()
    items = (item(E1, "ack"), item(E2, "nack"))
    assert await scene.settle(*items) == [DONE, DONE]
    before = await scene.state()
    assert await scene.settle(*items, reply_was_lost=True) == [UNKNOWN, UNKNOWN]
    assert await scene.state() == before


async def test_after_a_lost_reply_what_belongs_to_somebody_else_is_still_refused(scene: Scene) -> None:
    await scene.stalled()
    await scene.deliver(E1, consumer="w2")
    assert await scene.settle(item(E1, "ack"), reply_was_lost=True) == [REFUSED]


@pytest.mark.parametrize("verb", ["nack", "reject"])
async def test_a_deleted_payload_is_acknowledged_and_reported(scene: Scene, verb: str) -> None:
    await scene.stalled()
    await scene.client.xdel("orders", E1)
    assert await scene.settle(item(E1, verb)) == [LOST]
    assert await scene.state() == {
        "orders": {"entries": [], "billing": []},
        "{orders}:fence:billing": FENCE,
        "{orders}:group:billing": {"lost_payload": "1", "lost_payload_ms": "now"},
        "{orders}:journal": [event("lost_payload", E1)],
    }


async def test_a_job_without_payload_can_be_acknowledged(scene: Scene) -> None:
    await scene.stalled()
    await scene.client.xdel("orders", E1)
    assert codes(await scene.settle(item(E1, "ack"))) == [DONE]
    assert await scene.pending() == []


async def test_many_are_settled_in_one_call_each_by_its_own_verb(scene: Scene) -> None:
    ids = [await scene.stalled(consumer="w1" if n % 5 else "w2") for n in range(300)]
    verbs = ("ack", "nack", "reject", "ack")
    results = codes(await scene.settle(*(item(one, verbs[n % 4]) for n, one in enumerate(ids))))
    expected = [REFUSED if n % 5 == 0 else (DONE, DONE, DEAD, DONE)[n % 4] for n in range(300)]
    assert results == expected
    assert await scene.pending() == [(one, "w2", 1) for one in ids[::5]]


async def test_more_than_fit_into_one_command_are_acknowledged_in_one_call(scene: Scene) -> None:
    ids = await scene.add_many(2_500)
    await scene.client.xreadgroup("billing", "w1", {"orders": ">"}, count=2_500)
    assert await scene.settle(*(item(one, "ack") for one in ids), delete_acked=True) == 2_500
    assert (await scene.state())["orders"] == {"entries": [], "billing": []}


@pytest.mark.parametrize("verb", ["nack", "reject"])
async def test_an_entry_with_too_many_fields_is_held_and_its_neighbours_are_served(scene: Scene, verb: str) -> None:
    ids = [await scene.stalled(*(TOO_MANY if n == 50 else ())) for n in range(100)]
    results = await scene.settle(*(item(one, verb) for one in ids))
    assert results[50] == [HELD, b"too many fields"]
    assert set(codes(results[:50] + results[51:])) == {DEAD if verb == "reject" else DONE}
    assert await scene.pending() == [(ids[50], "w1", 1)]


async def test_an_entry_with_too_many_fields_can_be_acknowledged(scene: Scene) -> None:
    await scene.stalled(*TOO_MANY)
    assert codes(await scene.settle(item(E1, "ack"))) == [DONE]


async def test_a_nack_is_held_where_a_second_group_reads_the_stream(scene: Scene) -> None:
    await scene.stalled()
    await scene.client.xgroup_create("orders", "audit", "0")
    before = await scene.state()
    assert await scene.settle(item(E1, "nack")) == [[HELD, b"several_groups"]]
    assert await scene.state() == before


@pytest.mark.parametrize("explicit", ["5-1", "9999999999999-0"], ids=["low", "far future"])
async def test_a_nack_is_held_where_ids_are_explicit(scene: Scene, explicit: str) -> None:
    await scene.add(at=explicit)
    await scene.deliver(explicit)
    before = await scene.state()
    assert await scene.settle(item(explicit, "nack")) == [[HELD, b"explicit_ids"]]
    assert await scene.state() == before


@pytest.mark.parametrize("verb", ["nack", "reject"])
async def test_what_has_no_place_to_go_stays_pending(scene: Scene, verb: str) -> None:
    await scene.client.set(scene.keys.dead, "in the way")
    await scene.client.set(scene.keys.retry, "in the way")
    await scene.stalled()
    [[code, why]] = await scene.settle(item(E1, verb), policy="retry-stream")
    assert (code, b"WRONGTYPE" in why) == (HELD, True)
    assert await scene.pending() == [(E1, "w1", 1)]


async def test_a_broken_journal_stops_nothing(scene: Scene) -> None:
    await scene.client.set(scene.keys.journal, "no stream")
    ids = [await scene.stalled() for _ in range(3)]
    items = [item(one, verb) for one, verb in zip(ids, ("ack", "nack", "reject"), strict=True)]
    assert codes(await scene.settle(*items, item(E1, "ack"))) == [DONE, DONE, DEAD, REFUSED]
    assert (await scene.pending(), (await scene.state())["{orders}:journal"]) == ([], "no stream")


async def test_no_journal_is_written_where_it_is_off(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(3)]
    items = [item(one, verb) for one, verb in zip(ids, ("ack", "nack", "reject"), strict=True)]
    await scene.settle(*items, item(E1, "ack"), journal=False)
    assert "{orders}:journal" not in await scene.state()


async def test_workers_settle_when_memory_is_full(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(3)]
    items = [item(one, verb) for one, verb in zip(ids, ("nack", "reject", "ack"), strict=True)]
    await scene.fill_memory()
    results = codes(await scene.settle(*items))
    await scene.free_memory()
    assert results == [DONE, DEAD, DONE]
    events = [name for name, _, _ in (await scene.state())["{orders}:journal"]]
    assert (await scene.pending(), sorted(events)) == ([], ["acked", "dead_lettered", "nacked"])


async def test_a_group_that_was_destroyed_is_an_error(scene: Scene) -> None:
    await scene.stalled()
    await scene.client.xgroup_destroy("orders", "billing")
    with pytest.raises(Exception, match="NOGROUP"):
        await scene.settle(item(E1, "ack"))


async def test_settling_does_not_depend_on_how_long_the_job_ran(scene: Scene) -> None:
    added = await scene.add()
    await scene.deliver(added, idle_ms=1000 * LONG_IDLE_MS)
    assert codes(await scene.settle(item(added, "ack"))) == [DONE]


# ---- verbs that do not count, and delays


def scheduled(job: str, deliveries: int, *user: Word) -> tuple[Any, ...]:
    """Return a retry in the group's schedule, as `dump` shows it."""
    return ("now", "retry", job, deliveries, 0, int(job.split("-")[0]), "w1", job, tuple(shown(word) for word in user))


@pytest.mark.parametrize(
    ("verb", "deliveries", "waits", "name", "facts"),
    [
        ("nack", 1, 0, "nacked", {}),
        ("retry", 0, 3, "nacked", {"counts": False}),
        ("hand_back", 0, 2, "handed_back", {}),
    ],
)
async def test_each_verb_makes_the_job_ready_in_its_own_way(
    scene: Scene, verb: str, deliveries: int, waits: int, name: str, facts: dict[str, Any]
) -> None:
    await scene.stalled("n", 1, "reaper.waits", 2, "reaper.copies", 4)
    assert await scene.settle(item(E1, verb)) == [DONE]
    fields = ready(E1, deliveries, "w1", "n", 1, copies=5, waits=waits)
    assert await scene.state() == {
        "orders": {"entries": [("new-1", *fields)], "billing": []},
        "{orders}:fence:billing": FENCE,
        "{orders}:journal": [event(name, E1, **facts, new_entry="new-1")],
    }


@pytest.mark.parametrize("policy", ["stream", "retry-stream"])
@pytest.mark.parametrize(
    ("verb", "reason", "hand_backs"),
    [("hand_back", "interrupted", 3), ("hand_back", "", 2), ("nack", None, 0), ("retry", None, 0)],
)
async def test_hand_backs_are_counted_where_the_handler_had_begun_and_until_an_execution_ends(
    scene: Scene, verb: str, reason: str | None, hand_backs: int, policy: str
) -> None:
    await scene.stalled("n", 1, "reaper.hand_backs", 2)
    assert await scene.settle(item(E1, verb, reason=reason), policy=policy) == [DONE]
    [(_, *fields)] = (await scene.state())["{orders}:retry:billing" if policy == "retry-stream" else "orders"][
        "entries"
    ][-1:]
    said = dict(zip(fields[::2], fields[1::2], strict=True))
    assert said.get("reaper.hand_backs", "0") == str(hand_backs)


async def test_a_recovery_is_no_end_of_an_execution(scene: Scene) -> None:
    await scene.stalled("n", 1, "reaper.hand_backs", 2)
    await scene.recover(E1)
    assert (await scene.state())["orders"]["entries"] == [
        ("new-1", *ready(E1, 1, "w1", "n", 1, copies=1, hand_backs=2))
    ]


@pytest.mark.parametrize(("verb", "deliveries", "facts"), [("nack", 1, {}), ("retry", 0, {"counts": False})])
@pytest.mark.parametrize("policy", ["stream", "retry-stream"])
async def test_with_a_delay_the_job_is_scheduled(
    scene: Scene, verb: str, deliveries: int, facts: dict[str, Any], policy: str
) -> None:
    payload: tuple[Word, ...] = ("n", 1, "n", 2, BINARY, BINARY)
    await scene.stalled(*payload)
    assert await scene.settle(item(E1, verb, delay_ms=60_000), policy=policy) == [DONE]
    kept = [(E1, *(shown(word) for word in payload))] if policy == "retry-stream" else []
    assert await scene.state() == {
        "orders": {"entries": kept, "billing": []},
        "{orders}:fence:billing": FENCE,
        "{orders}:journal": [event("nacked", E1, **facts, due_ms="now")],
        "{orders}:scheduled:billing": [scheduled(E1, deliveries, *payload)],
    }


async def scores(scene: Scene) -> list[tuple[bytes, float]]:
    rows: Any = await scene.client.zrange(scene.keys.schedule, 0, -1, withscores=True)
    return [(member, score) for member, score in rows]


async def test_a_delay_is_counted_from_the_servers_clock(scene: Scene) -> None:
    await scene.stalled()
    now = await scene.now_ms()
    await scene.settle(item(E1, "nack", delay_ms=60_000))
    [(_, score)] = await scores(scene)
    assert score - now == pytest.approx(60_000, abs=5_000)


async def test_what_is_handed_back_is_ready_at_once_whatever_delay_was_given(scene: Scene) -> None:
    await scene.stalled()
    assert await scene.settle(item(E1, "hand_back", delay_ms=60_000)) == [DONE]
    assert set(await scene.state()) == {"orders", "{orders}:fence:billing", "{orders}:journal"}


@pytest.mark.parametrize("verb", ["retry", "hand_back"])
async def test_what_does_not_count_is_never_the_last_delivery(scene: Scene, verb: str) -> None:
    await scene.stalled(times=3)
    await scene.stalled(times=7)
    assert await scene.settle(item(E1, verb, times=3), item(E2, verb, times=7)) == [DONE, DONE]
    entries = (await scene.state())["orders"]["entries"]
    assert [entry[entry.index("reaper.deliveries") + 1] for entry in entries] == ["2", "2"]


@pytest.mark.parametrize("delay_ms", ["", 0, "0", "soon", "-5", "1e3"])
async def test_a_delay_that_is_none_makes_it_ready_at_once(scene: Scene, delay_ms: int | str) -> None:
    await scene.stalled()
    assert await scene.settle(item(E1, "nack", delay_ms=delay_ms)) == [DONE]
    assert [entry[0] for entry in (await scene.state())["orders"]["entries"]] == ["new-1"]


async def test_a_timeout_is_a_nack_that_says_so(scene: Scene) -> None:
    await scene.stalled()
    await scene.stalled(times=3)
    results = await scene.settle(item(E1, "nack", reason="timeout"), item(E2, "nack", times=3, reason="timeout"))
    assert codes(results) == [DONE, DEAD]
    assert [(name, data["reason"]) for name, _, data in (await scene.state())["{orders}:journal"]] == [
        ("nacked", "timeout"),
        ("dead_lettered", "timeout"),
    ]


@pytest.mark.parametrize(("verb", "times"), [("reject", 1), ("nack", 3)])
async def test_a_dead_letter_keeps_the_traceback(scene: Scene, verb: str, times: int) -> None:
    await scene.stalled(times=times)
    await scene.settle(item(E1, verb, times=times, error="boom", traceback="Traceback …\nboom"))
    [letter] = (await scene.state())["{orders}:dead:billing"]["entries"]
    assert letter[-2:] == ("reaper.dead.traceback", "Traceback …\nboom".encode().decode("latin-1"))


@pytest.mark.parametrize("verb", ["nack", "retry"])
async def test_a_full_memory_keeps_no_retry_from_being_scheduled(scene: Scene, verb: str) -> None:
    await scene.stalled()
    await scene.fill_memory()
    results = await scene.settle(item(E1, verb, delay_ms=60_000))
    await scene.free_memory()
    assert results == [DONE]
    assert await scene.client.zcard(scene.keys.schedule) == 1


async def test_where_the_policy_cannot_work_nothing_is_scheduled(scene: Scene) -> None:
    await scene.stalled()
    await scene.client.xgroup_create("orders", "audit", "0")
    assert await scene.settle(item(E1, "nack", delay_ms=60_000)) == [[HELD, b"several_groups"]]
    assert await scene.pending() == [(E1, "w1", 1)]


async def test_a_schedule_that_is_none_holds_its_job_and_not_its_neighbours(scene: Scene) -> None:
    await scene.client.set(scene.keys.schedule, "foreign")
    await scene.stalled()
    await scene.stalled()
    assert codes(await scene.settle(item(E1, "nack", delay_ms=60_000), item(E2, "nack"))) == [HELD, DONE]


@pytest.mark.parametrize("verb", ["retry", "hand_back"])
async def test_the_new_verbs_settle_nothing_that_is_somebody_elses(scene: Scene, verb: str) -> None:
    await scene.stalled(consumer="w2")
    before = await scene.state()
    assert await scene.settle(item(E1, verb, delay_ms=60_000)) == [REFUSED]
    after = await scene.state()
    assert after.pop("{orders}:journal") == [event("refused", E1, verb=verb)]
    assert after == before
