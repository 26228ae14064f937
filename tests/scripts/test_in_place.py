"""Policy `in-place`: what is given back stays where it is, pending under a consumer of ours. Nothing is copied.

What a reader with CLAIM takes is what is idle for long, so that is what the tests of all servers look at. Those that
know CLAIM read.
"""

from typing import Any

import pytest

from tests.scripts.scene import (
    FENCE,
    LONG_IDLE_MS,
    SUSPECT_SCORE,
    TOO_MANY,
    Scene,
    dead,
    details,
    item,
    ready,
    rows,
)
from tests.support.tiers import WITH_CLAIM
from tests.support.waiting import wait_until
from workers.protocol.keys import MARKER_CONSUMER as MARKER
from workers.protocol.keys import NOBODY
from workers.protocol.keys import READY_CONSUMER as READY
from workers.protocol.keys import WAITING_CONSUMER as WAITING
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

POLICY = "in-place"
CLAIMABLE_MS = 4_000_000_000
KNOWS_CLAIM = pytest.mark.only_on(*WITH_CLAIM)


async def agree(scene: Scene) -> None:
    """Have the group agree on the policy; a leader serves it."""
    await scene.agree(policy=POLICY, recovery="reaper", served_until=10**14, visibility_ms=30_000, max_deliveries=3)


@pytest.fixture(autouse=True)
async def _agreed(scene: Scene) -> None:
    await agree(scene)


async def shown(scene: Scene) -> dict[str, Any]:
    """Return what there is in stream, retry stream, schedule, suspects, dead letters and notes."""
    keys, state = scene.keys, await scene.state()
    names = (keys.stream, keys.retry, keys.schedule, keys.suspects, keys.dead, keys.notes)
    return {name: state[name] for name in names if name in state}


async def notes(scene: Scene) -> dict[str, str]:
    """Return the notes by entry ID."""
    found: Any = await scene.client.hgetall(scene.keys.notes)
    return {one.decode(): note.decode() for one, note in found.items()}


async def claim(scene: Scene, consumer: str = "w9", *, min_idle_ms: int = 10**9) -> list[tuple[str, int]]:
    """Read with CLAIM, as a worker does: ``(entry ID, deliveries before)``."""
    reply = await scene.client.execute_command(
        "XREADGROUP", "GROUP", "billing", consumer, "CLAIM", min_idle_ms, "STREAMS", "orders", ">"
    )
    return [(one.decode(), before) for _, entries in reply or () for one, _, _, before in entries]


def is_claimable(idle_ms: int, scene: Scene) -> bool:
    """Tell whether every reader with CLAIM takes it: idle for long, or nobody's."""
    return idle_ms == -1 if scene.ready_owner == NOBODY else idle_ms >= CLAIMABLE_MS


async def wait_there(scene: Scene, one: str, *, delay_ms: int = 60_000, times: int = 1) -> None:
    """Have a worker give it back with a delay."""
    assert await scene.settle(item(one, "nack", times=times, delay_ms=delay_ms), policy=POLICY) == [1]


async def until_later(scene: Scene) -> None:
    """Wait until the server's clock is further on, by more than a delay of a millisecond."""
    began = await scene.now_ms()

    async def is_later() -> bool:
        return await scene.now_ms() > began + 1

    await wait_until(is_later, "the clock is further on")


# --- recovered by the leader ------------------------------------------------------------------------------------


async def test_what_stalls_is_ready_where_it_is_with_its_count_and_a_note(scene: Scene) -> None:
    one = await scene.stalled("n", 1, "n", 2)
    reply = await scene.recover(one, policy=POLICY)
    assert rows(reply) == [(1, "w1", one, 1)]
    assert details(reply) == [one]
    assert await shown(scene) == {
        "orders": {"entries": [(one, "n", "1", "n", "2")], "billing": [(one, scene.ready_owner, 1)]},
        "{orders}:notes:billing": {one: "0,0,,,w1"},
    }
    assert is_claimable((await scene.idle_ms())[one], scene)
    [event] = (await scene.state())["{orders}:journal"]
    assert (event[0], event[1], event[2]["new_entry"]) == ("recovered", one, one)


@pytest.mark.parametrize("noted", range(4))
async def test_a_note_between_many_that_have_none_counts(scene: Scene, noted: int) -> None:
    ids = [await scene.stalled("n", number) for number in range(4)]
    await scene.client.hset(scene.keys.notes, ids[noted], "1,0,,,w0")
    await scene.recover(*ids, policy=POLICY)
    # It had two deliveries of three: it is to run alone.
    assert await scene.pending() == [(one, WAITING if one == ids[noted] else scene.ready_owner, 1) for one in ids]
    assert await notes(scene) == {one: "1,0,0,,w0,w1" if one == ids[noted] else "0,0,,,w1" for one in ids}


async def test_explicit_ids_and_other_groups_are_left_as_they_are(scene: Scene) -> None:
    await scene.client.xgroup_create("orders", "shipping", "0")
    one = await scene.add("n", 1, at="7-1")
    await scene.deliver(one)
    assert rows(await scene.recover(one, policy=POLICY)) == [(1, "w1", one, 1)]
    info: Any = await scene.client.xinfo_stream("orders")
    assert (info["length"], info["last-generated-id"]) == (1, b"7-1")
    summary: Any = await scene.client.xpending("orders", "shipping")
    assert summary[0] == 0


async def test_a_lost_reply_changes_nothing_and_what_is_ready_stays_so(scene: Scene) -> None:
    one = await scene.stalled()
    await scene.recover(one, policy=POLICY)
    before = await scene.state()
    assert details(await scene.recover(one, policy=POLICY)) == [30_000]
    assert await scene.state() == before
    assert is_claimable((await scene.idle_ms())[one], scene)


@pytest.mark.only_on("7.", "8.", "valkey")
async def test_to_ask_whether_xnack_may_be_used_refuses_and_logs_nothing(scene: Scene) -> None:
    async def errors() -> dict[str, Any]:
        told: Any = await scene.client.info("errorstats")
        return {name: count for name, count in told.items() if name != "errorstat_NOSCRIPT"}

    one = await scene.stalled()
    before = await errors()
    await scene.recover(one, policy=POLICY)
    assert await scene.pending() == [(one, scene.ready_owner, 1)]
    assert await errors() == before
    assert before  # they are counted


@KNOWS_CLAIM
async def test_a_reader_with_claim_gets_it_counted_once_more_and_one_without_does_not(scene: Scene) -> None:
    one = await scene.stalled()
    await scene.recover(one, policy=POLICY)
    assert not await scene.client.xreadgroup("billing", "plain", {"orders": ">"})
    assert await claim(scene) == [(one, 1)]
    assert await claim(scene, "another") == []
    assert await scene.pending() == [(one, "w9", 2)]


@KNOWS_CLAIM
async def test_of_many_claims_each_entry_goes_to_one_and_none_is_left(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(40)]
    await scene.recover(*ids, policy=POLICY)
    taken = [await claim(scene, f"w{number}") for number in range(4)]
    assert sorted(one for part in taken for one, _ in part) == sorted(ids)


async def test_where_little_is_pending_what_is_ready_is_read_in_turn(scene: Scene) -> None:
    if scene.ready_owner == NOBODY:
        return  # the server keeps what is nobody's in a list of its own
    first, second = [await scene.stalled() for _ in range(2)]
    await scene.recover(second, policy=POLICY)
    await until_later(scene)
    await scene.recover(first, policy=POLICY)
    idle = await scene.idle_ms()
    assert idle[second] > idle[first] >= CLAIMABLE_MS


async def test_where_much_is_pending_what_becomes_ready_is_older_than_what_did_before(scene: Scene) -> None:
    """From 8.6 on a server would look at each younger one otherwise: a mass cost the square of its size."""
    if scene.ready_owner == NOBODY:
        return  # the server keeps what is nobody's in a list of its own
    at_work = await scene.add_many(1_010)
    await scene.client.xreadgroup("billing", "busy", {"orders": ">"}, count=len(at_work))
    *recovered, waiting, given_back = [await scene.stalled() for _ in range(6)]
    await wait_there(scene, waiting, delay_ms=1)
    await scene.recover(*recovered[:2], policy=POLICY)
    await scene.recover(*recovered[2:], policy=POLICY)
    assert await scene.settle(item(given_back, "nack"), policy=POLICY) == [1]
    await until_later(scene)
    await scene.move_due(policy=POLICY)
    idle, order = await scene.idle_ms(), [*recovered, given_back, waiting]
    assert idle[order[0]] > CLAIMABLE_MS
    assert sorted(order, key=lambda one: idle[one]) == order
    assert len({idle[one] for one in order}) == len(order)

    await scene.client.xack("orders", "billing", *at_work[:11])  # few are at work now, however many are ready
    last = await scene.stalled()
    await scene.recover(last, policy=POLICY)
    assert CLAIMABLE_MS <= (await scene.idle_ms())[last] < idle[order[0]]


async def test_the_last_delivery_but_one_waits_with_the_suspects_and_is_kept_young(scene: Scene) -> None:
    one = await scene.stalled(times=2)
    assert rows(await scene.recover(one, policy=POLICY)) == [(2, "w1", one, 2)]
    expected = {
        "orders": {"entries": [(one, "n", "1")], "billing": [(one, WAITING, 2)]},
        "{orders}:scheduled:billing": [("parked", f"stream {one}")],
        "{orders}:notes:billing": {one: "0,0,0,,w1"},
    }
    assert await shown(scene) == expected
    assert (await scene.idle_ms())[one] < LONG_IDLE_MS
    await scene.deliver(one, consumer=WAITING, times=2)  # time passes
    assert details(await scene.recover(one, policy=POLICY)) == [30_000]
    assert await shown(scene) == expected
    assert (await scene.idle_ms())[one] < LONG_IDLE_MS


async def test_a_suspect_that_the_schedule_has_lost_falls_due_as_any_delivery(scene: Scene) -> None:
    one = await scene.stalled(times=2)
    await scene.recover(one, policy=POLICY)
    await scene.client.delete(scene.keys.schedule)
    await scene.deliver(one, consumer=WAITING, times=2)
    assert rows(await scene.recover(one, policy=POLICY)) == [(2, WAITING, one, 2)]
    assert (await shown(scene))["{orders}:scheduled:billing"] == [("parked", f"stream {one}")]


async def test_after_the_last_delivery_it_is_a_dead_letter_with_all_its_consumers(scene: Scene) -> None:
    one = await scene.stalled("n", 1)
    for times, consumer in ((1, "w1"), (2, "w2"), (3, "w3")):
        await scene.deliver(one, consumer=consumer, times=times)
        await scene.recover(one, policy=POLICY, journal=False)
        await scene.release(policy=POLICY, journal=False)
    letter = (
        "new-1", *ready(one, 3, "w1,w2,w3", "n", 1, copies=0),
        *dead(one, "max_deliveries", "not settled within the visibility timeout"),
    )  # fmt: skip
    found = await shown(scene)
    assert found["{orders}:dead:billing"]["entries"][0][:-4] == letter[:-4]
    assert found["orders"] == {"entries": [(one, "n", "1")], "billing": []}
    assert sorted(found) == ["orders", "{orders}:dead:billing"]


@pytest.mark.parametrize("consumer", ["w1", READY, WAITING])
async def test_a_payload_that_is_gone_is_acknowledged_wherever_it_waits(scene: Scene, consumer: str) -> None:
    one = await scene.stalled(consumer=consumer)
    await scene.client.hset(scene.keys.notes, one, "0,0,,,w1")
    await scene.client.xdel("orders", one)
    assert [row[0] for row in rows(await scene.recover(one, policy=POLICY))] == [5]
    assert await shown(scene) == {"orders": {"entries": [], "billing": []}}


async def test_a_stale_leader_gives_nothing_back(scene: Scene) -> None:
    one = await scene.stalled()
    reply = await scene.recover(one, policy=POLICY, fence="reaper:6:bob")
    assert reply[0] == b"stale"
    assert await scene.pending() == [(one, "w1", 1)]


async def test_with_memory_full_all_of_it_is_given_back(scene: Scene) -> None:
    ids = [await scene.stalled(times=times) for times in (1, 2)]
    await scene.beats()
    await scene.fill_memory()
    assert [row[0] for row in rows(await scene.recover(*ids, policy=POLICY))] == [1, 2]
    await scene.free_memory()
    assert await scene.pending() == [(ids[0], scene.ready_owner, 1), (ids[1], WAITING, 2)]


async def test_an_entry_with_more_fields_than_could_be_copied_is_given_back(scene: Scene) -> None:
    one = await scene.stalled(*TOO_MANY)
    assert [row[0] for row in rows(await scene.recover(one, policy=POLICY))] == [1]
    assert await scene.pending() == [(one, scene.ready_owner, 1)]


async def test_what_lies_in_the_retry_stream_is_given_back_there(scene: Scene) -> None:
    retry = scene.keys.retry
    await scene.client.xgroup_create(retry, "billing", "0", mkstream=True)
    one = await scene.add("n", 1, "reaper.job", "j", "reaper.deliveries", 1, stream=retry)
    await scene.deliver(one, stream=retry)
    assert rows(await scene.recover(one, source=retry, policy=POLICY)) == [(2, "w1", "j", 2)]
    assert await scene.pending(retry) == [(one, WAITING, 1)]
    assert (await shown(scene))["{orders}:scheduled:billing"] == [("parked", f"retry {one}")]
    assert [reply[1:] for reply in (await scene.release(policy=POLICY))[4:]] == [[one.encode()]]
    assert await scene.pending(retry) == [(one, scene.ready_owner, 1)]
    assert (await shown(scene))["{orders}:suspects:billing"] == {one: "retry"}


# --- recovered by workers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("note", ["0,0,,,w0", "-1,1,,,w0", "1,0,,,w0"])
@pytest.mark.parametrize("noted", range(4))
async def test_workers_claim_what_has_no_note_and_leave_the_rest_to_who_reads_notes(
    scene: Scene, noted: int, note: str
) -> None:
    await scene.agree(recovery="embedded")
    ids = [await scene.stalled("n", number) for number in range(4)]
    await scene.client.hset(scene.keys.notes, ids[noted], note)
    reply = await scene.autoclaim(consumer="w9")
    assert [one[0].decode() for one in reply[8]] == [one for one in ids if one != ids[noted]]
    owner = WAITING if note.startswith("1") else scene.ready_owner  # to run alone, or at once
    assert await scene.pending() == [(one, *((owner, 1) if one == ids[noted] else ("w9", 2))) for one in ids]
    assert (await notes(scene))[ids[noted]].endswith(",w0,w1")


async def test_without_room_all_is_ready_where_it_is_and_told_as_many(scene: Scene) -> None:
    await scene.agree(recovery="embedded")
    ids = [await scene.stalled("n", number) for number in range(4)]
    assert (await scene.autoclaim(consumer="w9", room=0))[5] == 4  # they wait for somebody with room
    assert await scene.pending() == [(one, "w1", 1) for one in ids]
    reply = await scene.autoclaim(consumer="w9", room=0, patience_ms=0)
    assert [(row[0], row[1].decode()) for row in reply[7]] == [(1, one) for one in ids]
    assert await scene.pending() == [(one, scene.ready_owner, 1) for one in ids]
    assert await notes(scene) == dict.fromkeys(ids, "0,0,,,w1")
    events = (await scene.state())["{orders}:journal"]
    assert [(event[0], event[2]["new_entry"]) for event in events] == [("recovered", one) for one in ids]
    assert await scene.client.xlen(scene.keys.journal) == 1


# --- given back by a worker -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "note"), [("nack", "0,0,,,w1"), ("retry", "-1,1,,,w1"), ("hand_back", "-1,0,,,w1")])
async def test_what_a_worker_gives_back_at_once_is_ready_where_it_is(scene: Scene, verb: str, note: str) -> None:
    one = await scene.stalled()
    assert await scene.settle(item(one, verb), policy=POLICY) == [1]
    assert await shown(scene) == {
        "orders": {"entries": [(one, "n", "1")], "billing": [(one, scene.ready_owner, 1)]},
        "{orders}:notes:billing": {one: note},
    }
    assert is_claimable((await scene.idle_ms())[one], scene)


async def test_uncounted_deliveries_do_not_count_and_no_two_deliveries_look_the_same(scene: Scene) -> None:
    one = await scene.stalled("n", 1)
    verbs = ["hand_back", "retry", "nack", "hand_back", "retry"]
    for times, verb in enumerate(verbs, start=1):
        await scene.deliver(one, times=times)
        assert await scene.settle(item(one, verb, times=times), policy=POLICY) == [1]
        assert await scene.pending() == [(one, scene.ready_owner, times)]
    assert await notes(scene) == {one: "-4,1,,,w1,w1,w1,w1,w1"}  # one counted; one retry in a row
    for times in (6, 7):
        await scene.deliver(one, times=times)
        [result] = await scene.settle(item(one, "nack", times=times), policy=POLICY)
    assert result[0] == 2
    assert "{orders}:notes:billing" not in await shown(scene)


async def test_a_note_counts_hand_backs_until_an_execution_ends(scene: Scene) -> None:
    one = await scene.stalled("n", 1)
    steps = [
        ("hand_back", "interrupted", "-1,0/1"),
        ("hand_back", "interrupted", "-2,0/2"),
        ("hand_back", "", "-3,0/2"),
    ]
    for times, (verb, reason, note) in enumerate([*steps, ("nack", "max_deliveries", "-3,0")], start=1):
        await scene.deliver(one, times=times)
        assert await scene.settle(item(one, verb, times=times, reason=reason), policy=POLICY) == [1]
        assert (await notes(scene))[one].startswith(f"{note},,,w1")


async def test_a_late_verdict_of_the_delivery_before_is_refused(scene: Scene) -> None:
    one = await scene.stalled()
    await scene.settle(item(one, "hand_back"), policy=POLICY)
    await scene.deliver(one, times=2)  # to the same consumer
    assert await scene.settle(item(one, "ack"), policy=POLICY) == [0]
    assert await scene.settle(item(one, "ack", times=2), policy=POLICY) == 1


async def test_after_a_lost_reply_what_was_given_back_is_unknown_not_refused(scene: Scene) -> None:
    one, other = await scene.stalled(), await scene.stalled()
    await scene.settle(item(one, "nack"), item(other, "nack", delay_ms=5_000), policy=POLICY)
    again = (item(one, "nack"), item(other, "nack", delay_ms=5_000))
    before = await scene.state()
    assert await scene.settle(*again, policy=POLICY, reply_was_lost=True) == [3, 3]
    assert await scene.state() == before
    await scene.deliver(one, consumer="w2", times=2)
    assert await scene.settle(again[0], policy=POLICY, reply_was_lost=True) == [3]


async def test_a_settled_job_leaves_no_note(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(3)]
    await scene.settle(*(item(one, "hand_back") for one in ids), policy=POLICY)
    await scene.deliver(*ids, times=2)
    assert await scene.settle(*(item(one, "ack", times=2) for one in ids), policy=POLICY) == 3
    assert sorted(await shown(scene)) == ["orders"]


async def test_a_rejected_job_is_our_dead_letter(scene: Scene) -> None:
    one = await scene.stalled()
    [result] = await scene.settle(item(one, "reject", reason="rejected"), policy=POLICY)
    assert result[0] == 2
    assert (await shown(scene))["orders"]["billing"] == []


async def test_a_caller_that_names_no_notes_gives_back_by_a_copy(scene: Scene) -> None:
    one = await scene.stalled("n", 1)
    assert await scene.settle(item(one, "nack"), policy=POLICY, names_suspects=False) == [1]
    assert await shown(scene) == {"orders": {"entries": [("new-1", *ready(one, 1, "w1", "n", 1))], "billing": []}}


# --- delays -----------------------------------------------------------------------------------------------------


async def test_a_delayed_retry_waits_where_it_is_and_is_ready_there_when_it_is_due(scene: Scene) -> None:
    one = await scene.stalled()
    await wait_there(scene, one)
    found = await shown(scene)
    assert found == {
        "orders": {"entries": [(one, "n", "1")], "billing": [(one, WAITING, 1)]},
        "{orders}:scheduled:billing": [(found["{orders}:scheduled:billing"][0][0], f"stream {one}")],
        "{orders}:notes:billing": {one: "0,0,,,w1"},
    }
    assert (await scene.move_due(policy=POLICY))[1] == 0
    await scene.make_due(scene.keys.schedule)
    assert (await scene.move_due(policy=POLICY))[:2] == [b"ok", 1]
    assert await shown(scene) == {
        "orders": {"entries": [(one, "n", "1")], "billing": [(one, scene.ready_owner, 1)]},
        "{orders}:notes:billing": {one: "0,0,,,w1"},
    }


@pytest.mark.parametrize("ended", ["acknowledged", "deleted", "claimed"])
async def test_what_waits_no_more_where_it_was_leaves_the_schedule(scene: Scene, ended: str) -> None:
    parked, waiting = await scene.stalled(times=2), await scene.stalled()
    await scene.recover(parked, policy=POLICY)
    await wait_there(scene, waiting)
    for one in (parked, waiting):
        if ended == "acknowledged":
            await scene.client.xack("orders", "billing", one)
        elif ended == "deleted":
            await scene.client.xdel("orders", one)
        else:
            await scene.deliver(one, consumer="w2", times=2)
    await scene.make_due(scene.keys.schedule)
    before = await scene.pending()
    assert (await scene.move_due(policy=POLICY))[:2] == [b"ok", 1]
    assert (await scene.release(policy=POLICY))[:3] == [b"ok", 0, 0]
    assert await scene.pending() == before
    assert "{orders}:scheduled:billing" not in await shown(scene)


@pytest.mark.parametrize("noted", [True, False])
async def test_what_waited_comes_back_where_somebody_deleted_the_consumer_that_held_it(
    scene: Scene, noted: bool
) -> None:
    """Who clears away consumers that are idle for long meets it sooner or later, perhaps while nobody scans."""
    parked, waiting = await scene.stalled(times=2), await scene.stalled()
    await scene.recover(parked, policy=POLICY)
    await wait_there(scene, waiting)
    await scene.client.xgroup_delconsumer("orders", "billing", WAITING)
    if not noted:  # housekeeping forgets notes of what is not pending
        await scene.client.delete(scene.keys.notes)
    await scene.make_due(scene.keys.schedule)
    assert (await scene.move_due(policy=POLICY))[:2] == [b"ok", 1]
    assert (await scene.release(policy=POLICY))[:3] == [b"ok", 0, 0]
    assert await scene.pending() == [(parked, MARKER, 1), (waiting, MARKER, 1)]
    assert "{orders}:scheduled:billing" not in await shown(scene)
    await scene.recover(parked, waiting, policy=POLICY)
    owners = {one: owner for one, owner, _ in await scene.pending()}
    assert owners == {parked: WAITING if noted else scene.ready_owner, waiting: scene.ready_owner}


OURS, LATER = "w.0123456789ab", "v.ba9876543210"
"""Workers of ours, by their names: who bears them ends nothing without its note."""


async def dropped_while_it_waits(scene: Scene, *held_by: str) -> tuple[str, str]:
    """Let one be parked and one wait, which these have held; delete the consumer, which the next one makes anew."""
    parked, waiting = await scene.stalled(times=2, consumer=held_by[-1]), await scene.stalled(consumer=held_by[-1])
    for earlier in held_by[:-1]:
        await scene.client.hset(scene.keys.notes, mapping=dict.fromkeys((parked, waiting), f"0,0,,,{earlier}"))
    await scene.recover(parked, policy=POLICY)
    nacked = item(waiting, "nack", times=1, delay_ms=60_000)
    assert await scene.settle(nacked, consumer=held_by[-1], policy=POLICY) == [1]
    await scene.client.xgroup_delconsumer("orders", "billing", WAITING)
    await wait_there(scene, await scene.stalled())
    return parked, waiting


@pytest.mark.parametrize(
    ("held_by", "times"), [((OURS,), 1), ((LATER, OURS), 2), ((MARKER, OURS), 1), ((OURS, LATER, OURS), 2)], ids=str
)
async def test_what_waits_does_so_still_although_the_next_one_made_its_consumer_anew(
    scene: Scene, held_by: tuple[str, ...], times: int
) -> None:
    """Where jobs fail all the time it is there again before anybody looks, so that its absence says nothing.

    How often it was delivered is known of its note, and never said to be more than who waits may have had.
    """
    parked, waiting = await dropped_while_it_waits(scene, *held_by)
    await keep_house(scene)
    await scene.make_due(scene.keys.schedule)
    assert (await scene.move_due(policy=POLICY))[:2] == [b"ok", 2]
    assert (await scene.release(policy=POLICY))[:4] == [b"ok", 0, 1, 0]
    rows = {one: (owner, count) for one, owner, count in await scene.pending()}
    assert {one: rows.get(one) for one in (parked, waiting)} == dict.fromkeys(
        (parked, waiting), (scene.ready_owner, times)
    )
    assert {parked, waiting} <= (await notes(scene)).keys(), "what was known of them is known still"


@pytest.mark.parametrize("held_by", [("w1",), ("w1", OURS)], ids=str)
async def test_what_somebody_else_may_have_acknowledged_late_is_not_run_again(
    scene: Scene, held_by: tuple[str, ...]
) -> None:
    parked, waiting = await dropped_while_it_waits(scene, *held_by)
    await scene.make_due(scene.keys.schedule)
    assert (await scene.move_due(policy=POLICY))[:2] == [b"ok", 2]
    assert (await scene.release(policy=POLICY))[:3] == [b"ok", 0, 0]
    assert not {parked, waiting} & {one for one, *_ in await scene.pending()}
    await keep_house(scene)
    assert not {parked, waiting} & (await notes(scene)).keys(), "nobody needs what was known of them"


async def test_what_a_worker_of_ours_has_ended_out_of_its_turn_is_not_run_again(scene: Scene) -> None:
    """As where nobody kept it young: what waits may be claimed in the end."""
    waiting = await scene.stalled(consumer=OURS)
    nacked = item(waiting, "nack", times=1, delay_ms=60_000)
    assert await scene.settle(nacked, consumer=OURS, policy=POLICY) == [1]
    await scene.deliver(waiting, consumer=LATER, times=2)
    assert await scene.settle(item(waiting, "ack", times=2), consumer=LATER, policy=POLICY) == 1
    await wait_there(scene, await scene.stalled())
    await scene.make_due(scene.keys.schedule)
    assert (await scene.move_due(policy=POLICY))[:2] == [b"ok", 2]
    assert waiting not in [one for one, *_ in await scene.pending()]


async def test_what_a_server_has_yet_to_deliver_anew_is_not_put_back(scene: Scene) -> None:
    waiting = await scene.stalled()
    await wait_there(scene, waiting)
    await scene.client.xgroup_delconsumer("orders", "billing", WAITING)
    await scene.client.xgroup_setid("orders", "billing", "0")
    await scene.make_due(scene.keys.schedule)
    assert (await scene.move_due(policy=POLICY))[:2] == [b"ok", 1]
    assert await scene.pending() == []


# --- probation --------------------------------------------------------------------------------------------------


async def test_suspects_are_let_out_one_at_a_time_where_they_are(scene: Scene) -> None:
    first, second = await scene.stalled(times=2), await scene.stalled(times=2)
    await scene.recover(first, policy=POLICY)
    await scene.recover(second, policy=POLICY)
    assert await scene.release(policy=POLICY) == [b"ok", 1, 1, 0, [first.encode(), first.encode()]]
    assert await scene.pending() == [(first, scene.ready_owner, 2), (second, WAITING, 2)]
    assert await scene.release(policy=POLICY) == [b"ok", 1, 1, 0]
    await scene.deliver(first, times=3, idle_ms=0)
    assert await scene.release(policy=POLICY) == [b"ok", 1, 1, 0]
    await scene.settle(item(first, "ack", times=3), policy=POLICY)
    assert await scene.release(policy=POLICY) == [b"ok", 0, 1, 1, [second.encode(), second.encode()]]


@pytest.mark.parametrize(("verb", "score"), [("hand_back", "front"), ("retry", "parked")])
async def test_a_suspect_that_is_given_back_is_parked_again(scene: Scene, verb: str, score: str) -> None:
    one = await scene.stalled(times=2)
    await scene.recover(one, policy=POLICY)
    await scene.release(policy=POLICY)
    await scene.deliver(one, times=3)
    assert await scene.settle(item(one, verb, times=3), policy=POLICY) == [1]
    found = await shown(scene)
    assert (found["orders"]["billing"], found["{orders}:scheduled:billing"]) == (
        [(one, WAITING, 3)],
        [(score, f"stream {one}")],
    )
    assert "{orders}:suspects:billing" not in found


async def test_a_delayed_suspect_is_parked_when_it_is_due(scene: Scene) -> None:
    one = await scene.stalled(times=2)
    await scene.recover(one, policy=POLICY)
    await scene.release(policy=POLICY)
    await scene.deliver(one, times=3)
    await scene.settle(item(one, "retry", times=3, delay_ms=60_000), policy=POLICY)
    await scene.make_due(scene.keys.schedule)
    assert (await scene.move_due(policy=POLICY))[:2] == [b"ok", 1]
    found = await shown(scene)
    assert (found["orders"]["billing"], found["{orders}:scheduled:billing"]) == (
        [(one, WAITING, 3)],
        [("parked", f"stream {one}")],
    )


async def test_suspects_that_crash_in_company_are_convicted_of_nothing(scene: Scene) -> None:
    ids = [await scene.stalled(times=2), await scene.stalled(times=2)]
    await scene.recover(*ids, policy=POLICY)
    await scene.client.hset(scene.keys.suspects, mapping=dict.fromkeys(ids, "stream"))
    await scene.client.delete(scene.keys.schedule)
    await scene.deliver(*ids, consumer="w5", times=3)
    assert [row[0] for row in rows(await scene.recover(*ids, policy=POLICY))] == [2, 2]
    assert await notes(scene) == dict.fromkeys(ids, "-1,0,1,,w1,w5")
    assert await scene.client.zrange(scene.keys.schedule, 0, -1, withscores=True) == [
        [f"stream {one}".encode(), SUSPECT_SCORE] for one in ids
    ]


async def test_an_adopted_suspect_is_parked_where_it_is(scene: Scene) -> None:
    one, other = await scene.stalled(times=2), await scene.stalled()
    reply = await scene.adopt()
    assert [taken[:2] for taken in reply[4]] == [[other.encode(), 2]]
    assert await scene.pending() == [(one, WAITING, 2), (other, "w1.new", 2)]


async def test_what_is_adopted_is_told_with_what_is_noted_of_it(scene: Scene) -> None:
    noted, other = await scene.stalled(times=1), await scene.stalled(times=1)
    await scene.client.hset(scene.keys.notes, noted, "-1,0,1,,w5")
    reply = await scene.adopt(case="reread", from_consumer="w1", consumer="w1")
    assert [(taken[0].decode(), taken[4]) for taken in reply[4]] == [(noted, b"-1,0,1,,w5"), (other, b"")]


# --- from policy to policy --------------------------------------------------------------------------------------


async def laid_aside(scene: Scene) -> tuple[str, str, str, str]:
    """Return a job that is ready, one that waits, a suspect that is parked, and one that is out."""
    at_once, waiting, out, parked = [await scene.stalled("n", number, times=1 + number // 2) for number in range(4)]
    await scene.recover(at_once, policy=POLICY, journal=False)
    await wait_there(scene, waiting)
    await scene.recover(out, policy=POLICY, journal=False)
    await scene.recover(parked, policy=POLICY, journal=False)
    assert len(await scene.release(policy=POLICY, journal=False)) == 5
    return at_once, waiting, out, parked


@pytest.mark.parametrize("policy", ["stream", "retry-stream"])
async def test_what_was_laid_aside_is_copied_once_the_policy_is_another_one(scene: Scene, policy: str) -> None:
    at_once, waiting, out, parked = await laid_aside(scene)
    await scene.agree(policy=policy)
    target = "orders" if policy == "stream" else scene.keys.retry
    assert [row[0] for row in rows(await scene.recover(at_once, waiting, out, parked, policy=policy))] == [1, 4, 1, 4]
    await scene.make_due(scene.keys.schedule)
    assert (await scene.move_due(policy=policy))[:2] == [b"ok", 1]
    entries: Any = await scene.client.xrange(target)
    copies = {fields[b"reaper.job"].decode(): one for one, fields in _fields(entries) if b"reaper.job" in fields}
    assert sorted(copies) == sorted([at_once, waiting, out])
    assert await scene.client.hgetall(scene.keys.suspects) == {copies[out]: target_kind(policy)}
    await scene.client.delete(scene.keys.suspects)
    assert (await scene.release(policy=policy))[4][0] == parked.encode()
    assert await scene.pending() == []
    assert await notes(scene) == {}


def target_kind(policy: str) -> bytes:
    return b"stream,0" if policy == "stream" else b"retry,0"


def _fields(entries: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return [
        (one, flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True)))
        for one, flat in entries
    ]


@pytest.mark.parametrize("several", [False, True])
async def test_what_was_copied_goes_on_in_place(scene: Scene, *, several: bool) -> None:
    await scene.agree(policy="stream")
    parked, waiting = await scene.stalled("n", 1, times=2), await scene.stalled("n", 2)
    await scene.recover(parked, policy="stream", journal=False)
    await scene.settle(item(waiting, "nack", delay_ms=1_000), journal=False)
    if several:
        await scene.client.xgroup_create("orders", "shipping", "0")
    await scene.agree(policy=POLICY)
    await scene.make_due(scene.keys.schedule)
    assert (await scene.move_due(policy=POLICY))[:2] == [b"ok", 1]
    assert len(await scene.release(policy=POLICY)) == 5
    target = scene.keys.retry if several else "orders"
    jobs = [fields[b"reaper.job"].decode() for _, fields in _fields(await scene.client.xrange(target))]
    assert jobs == [waiting, parked]


# --- the house --------------------------------------------------------------------------------------------------


async def keep_house(scene: Scene, silence_ms: int | str = "") -> Any:
    keys = scene.keys
    return await load_script("workers.protocol", "keep_house").run(
        scene.client,
        [keys.stream, keys.fence, keys.agreement, keys.journal, keys.retry, keys.notes, keys.schedule],
        [FENCE, keys.group, silence_ms, 1, 1_000, 7],
    )


async def test_the_house_is_kept_of_notes_that_nobody_needs_and_our_consumers_stay(scene: Scene) -> None:
    ids = [await scene.stalled(times=1 + number // 2) for number in range(4)]
    await scene.recover(*ids, policy=POLICY)
    await scene.client.xack("orders", "billing", ids[0], ids[2])  # by somebody who knows nothing of notes
    await keep_house(scene)
    assert sorted(await notes(scene)) == [ids[1], ids[2], ids[3]], "who lets suspects out looks at theirs"
    await scene.release(policy=POLICY)
    await keep_house(scene)
    assert sorted(await notes(scene)) == [ids[1], ids[3]]
    await scene.client.xack("orders", "billing", ids[1], ids[3])
    await keep_house(scene, 0)
    names = {row["name"].decode() for row in await scene.client.xinfo_consumers("orders", "billing")}
    assert {scene.ready_owner or WAITING, WAITING} <= names
    assert await notes(scene) == {}
