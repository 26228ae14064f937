"""adopt.lua: a worker takes over what it owns and does not run, or gives it up."""

from typing import Any

import pytest

from tests.scripts.scene import FENCE, LONG_IDLE_MS, TOO_MANY, Scene, dead, entry_id, ready

pytestmark = pytest.mark.anyio

E1, E2, E3 = entry_id(1), entry_id(2), entry_id(3)
ENDED = "the worker process ended while it held the job"


def event(name: str, job: str, *, delivery: int, **more: Any) -> Any:
    data = {
        "group": "billing",
        "entry": job,
        "consumer": "w1",
        "delivery": delivery,
        "generation": 0,
        "enqueued_ms": int(job.split("-")[0]),
    }
    return name, job, data | more


async def idle_ms(scene: Scene, one: str) -> int:
    rows: Any = await scene.client.xpending_range("orders", "billing", one, one, 1)
    return int(rows[0][2])


async def test_what_an_earlier_process_held_is_taken_and_counted(scene: Scene) -> None:
    await scene.stalled("n", 1, "n", 2)
    *others, [taken] = await scene.adopt()
    assert (others, taken[:3]) == ([b"", 0, [], []], [E1.encode(), 2, [b"n", b"1", b"n", b"2"]])
    assert LONG_IDLE_MS <= taken[3] < LONG_IDLE_MS + 10_000
    assert await scene.state() == {
        "orders": {"entries": [(E1, "n", "1", "n", "2")], "billing": [(E1, "w1.new", 2)]},
        "{orders}:fence:billing": FENCE,
        "{orders}:journal": [event("recovered", E1, delivery=1, mode="adopt", reason="restart", new_entry=E1)],
    }
    assert await idle_ms(scene, E1) < 10_000


async def test_what_never_arrived_is_taken_and_not_counted(scene: Scene) -> None:
    await scene.stalled("n", 1)
    *others, [taken] = await scene.adopt(case="reread", from_consumer="w1", consumer="w1")
    assert (others, taken[:3]) == ([b"", 0, [], []], [E1.encode(), 1, [b"n", b"1"]])
    assert await scene.state() == {
        "orders": {"entries": [(E1, "n", "1")], "billing": [(E1, "w1", 1)]},
        "{orders}:fence:billing": FENCE,
    }
    assert await idle_ms(scene, E1) < 10_000


@pytest.mark.parametrize("times", [1, 0])
async def test_what_is_in_flight_here_and_what_others_hold_is_left_alone(scene: Scene, times: int) -> None:
    for consumer in ("w1", "w2", "w1"):
        await scene.stalled(consumer=consumer)
    reply = await scene.adopt((E1, times))
    assert [row[0].decode() for row in reply[4]] == [E3]
    assert await scene.pending() == [(E1, "w1", 1), (E2, "w2", 1), (E3, "w1.new", 2)]


async def test_what_is_in_flight_here_by_another_count_has_never_arrived(scene: Scene) -> None:
    """It was given back meanwhile, and read again by a call whose reply was lost (seed 4014240)."""
    await scene.stalled(times=2, consumer="w1.new")
    await scene.stalled(times=1, consumer="w1.new")
    reply = await scene.adopt((E1, 1), (E2, 1), case="reread", from_consumer="w1.new")
    assert [row[:2] for row in reply[4]] == [[E1.encode(), 2]]
    assert await scene.pending() == [(E1, "w1.new", 2), (E2, "w1.new", 1)]


async def test_a_job_whose_next_delivery_is_its_last_waits_until_suspects_are_asked_for(scene: Scene) -> None:
    for _ in range(2):
        await scene.stalled(times=2)
    before = await scene.state()
    assert await scene.adopt() == [b"", 2, [], [], []]
    assert await scene.state() == before
    reply = await scene.adopt(suspect_room=1)
    assert (reply[1], [row[:2] for row in reply[4]]) == (1, [[E1.encode(), 3]])


async def test_a_crash_loop_ends_in_a_dead_letter(scene: Scene) -> None:
    await scene.stalled("n", 1)
    for times in (2, 3):
        assert [row[1] for row in (await scene.adopt(consumer="w1", suspect_room=1))[4]] == [times]
    reply = await scene.adopt(suspect_room=1)
    assert [row[:3] for row in reply[2]] == [[E1.encode(), E1.encode(), 3]]
    state = await scene.state()
    letter = (*ready(E1, 3, "w1", "n", 1, copies=0), *dead(E1, "max_deliveries", ENDED))
    assert state["orders"] == {"entries": [(E1, "n", "1")], "billing": []}
    assert state["{orders}:dead:billing"] == {"entries": [("new-1", *letter)]}
    assert state["{orders}:journal"][-1] == event(
        "dead_lettered", E1, delivery=3, mode="adopt", reason="max_deliveries", dead_letter="new-1"
    )


async def test_of_a_traced_job_the_dead_letter_names_its_last_delivery(scene: Scene) -> None:
    sampled = f"00-{'ab' * 16}-{'cd' * 8}-01"
    await scene.stalled("traceparent", sampled, "reaper.previous", "0.0.1.r", "reaper.copies", 1, times=3)
    await scene.stalled("n", 1, times=3)
    traced, untraced = (await scene.adopt())[2]
    assert LONG_IDLE_MS <= traced[4] < LONG_IDLE_MS + 10_000
    assert traced[5:] == [[sampled.encode(), b"", b"0.1.3", b"0.0.1.r"]]
    assert untraced[5:] == []
    letters: Any = await scene.client.xrange(scene.keys.dead)
    letter = letters[0][1]
    assert dict(zip(letter[::2], letter[1::2], strict=True))[b"reaper.previous"] == b"0.1.3.r"


async def test_a_dead_letter_from_the_retry_stream_leaves_it(scene: Scene) -> None:
    retry = scene.keys.retry
    await scene.client.xgroup_create(retry, "billing", "0", mkstream=True)
    await scene.add("n", 1, stream=retry)
    await scene.deliver(E1, stream=retry, times=3)
    reply = await scene.adopt(source=retry)
    assert [row[0].decode() for row in reply[2]] == [E1]
    state = await scene.state()
    assert state[retry] == {"entries": [], "billing": []}
    assert state["{orders}:dead:billing"]["entries"][0][-13] == "orders"


async def test_a_suspect_that_a_leader_released_is_left_for_the_leader_to_judge(scene: Scene) -> None:
    await scene.stalled(times=3)
    await scene.client.hset(scene.keys.suspects, E1, "stream")
    before = await scene.state()
    assert await scene.adopt(suspect_room=1) == [b"", 0, [], [], []]
    assert await scene.state() == before


async def test_a_suspect_whose_delivery_never_arrived_is_taken(scene: Scene) -> None:
    await scene.stalled()
    await scene.client.hset(scene.keys.suspects, E1, "stream")
    assert [row[0].decode() for row in (await scene.adopt(case="reread"))[4]] == [E1]


async def test_the_agreed_limit_counts_and_not_the_workers_own(scene: Scene) -> None:
    await scene.stalled()
    await scene.agree(max_deliveries=1)
    assert len((await scene.adopt(max_deliveries=9))[2]) == 1


async def test_no_more_are_taken_than_there_is_room_for(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(5)]
    reply = await scene.adopt(room=2)
    assert (reply[0].decode(), [row[0].decode() for row in reply[4]]) == (ids[1], ids[:2])


async def test_pages_lead_to_the_end(scene: Scene) -> None:
    ids = [await scene.stalled(times=2 if n < 120 else 1) for n in range(250)]
    taken, after = [], "-"
    while after:
        reply = await scene.adopt(after=after)
        after = reply[0].decode()
        taken += [row[0].decode() for row in reply[4]]
    assert taken == ids[120:]


async def test_a_call_returns_a_bounded_number_of_bytes(scene: Scene) -> None:
    ids = [await scene.stalled("blob", b"x" * 400_000) for _ in range(5)]
    reply = await scene.adopt()
    assert (reply[0].decode(), [row[0].decode() for row in reply[4]]) == (ids[2], ids[:3])


@pytest.mark.parametrize("case", ["restart", "reread"])
async def test_a_deleted_payload_is_acknowledged_and_reported(scene: Scene, case: str) -> None:
    await scene.stalled()
    await scene.client.xdel("orders", E1)
    assert await scene.adopt(case=case) == [b"", 0, [], [], []]
    assert await scene.state() == {
        "orders": {"entries": [], "billing": []},
        "{orders}:fence:billing": FENCE,
        "{orders}:group:billing": {"lost_payload": "1", "lost_payload_ms": "now"},
        "{orders}:journal": [event("lost_payload", E1, delivery=1, enqueued_ms=0)],
    }


async def test_an_entry_that_cannot_be_copied_is_held_and_its_neighbours_are_served(scene: Scene) -> None:
    ids = [await scene.stalled(*(TOO_MANY if n == 50 else ()), times=3) for n in range(100)]
    reply = await scene.adopt()
    assert reply[3] == [[ids[50].encode(), b"too many fields"]]
    assert len(reply[2]) == 99
    assert await scene.pending() == [(ids[50], "w1", 3)]


async def test_a_broken_journal_stops_nothing(scene: Scene) -> None:
    await scene.client.set(scene.keys.journal, "no stream")
    await scene.stalled()
    await scene.stalled(times=3)
    reply = await scene.adopt()
    assert (len(reply[2]), len(reply[4])) == (1, 1)


async def test_no_journal_is_written_where_it_is_off(scene: Scene) -> None:
    for times in (1, 3):
        await scene.stalled(times=times)
    await scene.adopt(journal=False)
    assert "{orders}:journal" not in await scene.state()


async def test_adopting_works_when_memory_is_full(scene: Scene) -> None:
    await scene.stalled()
    await scene.stalled(times=3)
    await scene.fill_memory()
    reply = await scene.adopt()
    await scene.free_memory()
    assert (len(reply[2]), len(reply[4])) == (1, 1)
    assert [name for name, _, _ in (await scene.state())["{orders}:journal"]] == ["recovered", "dead_lettered"]


async def test_nothing_to_adopt_is_said_at_once(scene: Scene) -> None:
    before = await scene.state()
    assert await scene.adopt() == [b"", 0, [], [], []]
    assert await scene.state() == before


@pytest.mark.parametrize(("case", "is_renewed"), [("restart", True), ("reread", False)])
async def test_from_then_on_the_word_of_the_earlier_process_says_nothing_of_what_it_ran(
    scene: Scene, case: str, is_renewed: bool
) -> None:
    word = f"1,30000,3,{await scene.now_ms() + 60_000},"
    await scene.agree(**{"member:w1": f"{word}17,"})
    await scene.stalled()
    began = await scene.now_ms()
    await scene.adopt(case=case)
    value: Any = await scene.client.hget(scene.keys.agreement, "member:w1")
    assert value.decode().startswith(word), "by what its other deliveries are judged stays"
    since = int(value.split(b",")[4])
    assert since > began if is_renewed else since == 17
