"""Probation belongs to the job: whatever way a suspect takes, it becomes ready through release_suspects.lua alone."""

from typing import Any

import pytest

from tests.scripts.scene import FENCE, Scene, entry_id, item, ready, rows
from tests.scripts.test_release_suspects import park, read, release, stall

pytestmark = pytest.mark.anyio

DONE, DEAD_LETTERED = 1, 2
SUSPECTED, DEAD = 2, 3
E1 = entry_id(1)
MARK = ("reaper.suspect", "1")

GIVEN_BACK: dict[str, dict[str, Any]] = {
    "handed back": {"verb": "hand_back"},
    "an uncounted retry": {"verb": "retry"},
    "a counted retry with deliveries left": {"verb": "nack", "raised": True},
}
AFTER_A_DELAY: dict[str, dict[str, Any]] = {
    "an uncounted retry": {"verb": "retry"},
    "a counted retry with deliveries left": {"verb": "nack", "raised": True},
}


@pytest.fixture
async def scene(scene: Scene) -> Scene:
    """The scene, served by its leader: somebody lets suspects out."""
    await scene.agree(policy="stream", recovery="reaper", served_until=10**14, visibility_ms=30_000)
    return scene


async def let_out(scene: Scene, count: int = 3) -> tuple[list[str], str]:
    """Park suspects, let the first one out and have it read; return their jobs, and the entry that is out."""
    jobs = await park(scene, count)
    await release(scene)
    [one] = await read(scene)
    return jobs, one


async def give_back(
    scene: Scene, one: str, verb: str, *, raised: bool = False, delay_ms: int = 0, reason: str | None = None
) -> None:
    """Settle a suspect so that it will be run again."""
    if raised:
        await scene.agree(max_deliveries=9)
    assert await scene.settle(item(one, verb, delay_ms=delay_ms, reason=reason)) == [DONE]


async def parked(scene: Scene) -> list[tuple[Any, ...]]:
    """Return ``(place, job, deliveries)`` of what is parked, in order."""
    rows_: list[Any] = (await scene.state()).get("{orders}:scheduled:billing", [])
    return [(row[0], row[2], row[3]) for row in rows_ if row[1] == "suspect"]


@pytest.mark.parametrize("way", GIVEN_BACK.values(), ids=GIVEN_BACK)
async def test_a_suspect_that_is_given_back_is_parked_again_and_nothing_counts_as_settled(
    scene: Scene, way: dict[str, Any]
) -> None:
    jobs, one = await let_out(scene)
    await give_back(scene, one, **way)
    deliveries = 3 if way["verb"] == "nack" else 2
    place, order = ("front", [jobs[0], *jobs[1:]]) if way["verb"] == "hand_back" else ("parked", [*jobs[1:], jobs[0]])
    there = await parked(scene)
    assert [job for _, job, _ in there] == order
    assert (place, jobs[0], deliveries) in there
    assert "{orders}:suspects:billing" not in await scene.state()
    _, out, settled, released = await release(scene)
    assert (out, settled, [job for job, _ in released]) == (1, 0, order[:1])


async def test_a_suspect_keeps_the_number_of_its_hand_backs_while_it_is_parked(scene: Scene) -> None:
    _, one = await let_out(scene)
    await give_back(scene, one, "hand_back", reason="interrupted")
    await release(scene)
    [released] = [entry for entry in (await scene.state())["orders"]["entries"] if "reaper.suspect" in entry]
    assert released[released.index("reaper.hand_backs") + 1] == "1"


@pytest.mark.parametrize("way", AFTER_A_DELAY.values(), ids=AFTER_A_DELAY)
async def test_a_suspect_that_is_delayed_is_parked_when_it_is_due(scene: Scene, way: dict[str, Any]) -> None:
    jobs, one = await let_out(scene)
    await give_back(scene, one, delay_ms=60_000, **way)
    assert (await release(scene))[1:3] == (1, 0), "the next one is out, and nothing counts as settled"
    await scene.make_due(scene.keys.schedule)
    reply = await scene.move_due()
    assert (reply[1], reply[5]) == (1, 2), "whoever moves what is due learns that suspects are parked"
    assert [job for _, job, _ in await parked(scene)] == [jobs[2], jobs[0]]


async def test_a_suspect_that_is_handed_back_again_and_again_stays_one(scene: Scene) -> None:
    jobs, one = await let_out(scene)
    for _ in range(5):
        await give_back(scene, one, "hand_back")
        assert [job for job, _ in (await release(scene))[3]] == jobs[:1]
        [one] = await read(scene)
    await stall(scene, one)
    assert rows(await scene.recover(one)) == [(DEAD, "w1", jobs[0], 3)]


async def test_the_event_of_a_suspect_that_is_given_back_says_that_it_waits_in_the_schedule(scene: Scene) -> None:
    jobs, one = await let_out(scene)
    await give_back(scene, one, "hand_back")
    name, _, data = (await scene.state())["{orders}:journal"][-1]
    assert (name, data) == ("handed_back", {"group": "billing", "entry": data["entry"], "due_ms": "now"})
    assert jobs


async def test_how_often_a_retry_did_not_count_survives_being_parked(scene: Scene) -> None:
    jobs, one = await let_out(scene, 1)
    await give_back(scene, one, "retry")
    await release(scene)
    [fields] = [entry[1:] for entry in (await scene.state())["orders"]["entries"]]
    assert fields == ready(jobs[0], 2, "w1,w1", "n", 1, copies=2, waits=1, suspect=True)


async def test_with_a_retry_stream_a_suspect_is_parked_again_and_leaves_nothing_there(scene: Scene) -> None:
    retry = scene.keys.retry
    await scene.agree(policy="retry-stream")
    await scene.client.xgroup_create(retry, "billing", "0", mkstream=True)
    await scene.stalled(times=2)
    await scene.recover(E1, policy="retry-stream")
    await scene.release(policy="retry-stream")
    reply: Any = await scene.client.xreadgroup("billing", "w1", {retry: ">"})
    one = reply[0][1][0][0].decode()
    assert await scene.settle(item(one, "hand_back"), source=retry) == [DONE]
    state = await scene.state()
    assert (state[retry], await parked(scene)) == ({"entries": [], "billing": []}, [("front", E1, 2)])


async def test_a_batch_of_all_verbs_leaves_each_suspect_where_it_belongs(scene: Scene) -> None:
    jobs = await park(scene, 5)
    await scene.agree(suspects_settled=102)
    await release(scene)
    entries = await read(scene)
    verbs = [("ack", 0), ("hand_back", 0), ("retry", 0), ("retry", 60_000)]
    results = await scene.settle(
        *(item(one, verb, delay_ms=ms) for one, (verb, ms) in zip(entries, verbs, strict=True))
    )
    assert results == [DONE] * 4
    assert [job for _, job, _ in await parked(scene)] == [jobs[1], jobs[4], jobs[2]]
    assert (await release(scene))[2] == 1, "one has settled, and nobody else"


async def test_a_settlement_whose_reply_was_lost_parks_once(scene: Scene) -> None:
    _, one = await let_out(scene)
    await give_back(scene, one, "hand_back")
    before = await scene.state()
    assert await scene.settle(item(one, "hand_back"), reply_was_lost=True) == [3]
    assert await scene.state() == before


@pytest.mark.parametrize("end", ["ack", "reject", "nack", "foreign ack", "deleted"])
async def test_a_suspect_that_has_ended_counts_as_settled(scene: Scene, end: str) -> None:
    jobs, one = await let_out(scene)
    if end == "foreign ack":
        await scene.client.xack("orders", "billing", one)
    elif end == "deleted":
        await stall(scene, one)
        await scene.client.xdel("orders", one)
        assert rows(await scene.recover(one))[0][0] == 5
    else:
        await scene.settle(item(one, end))
    _, _, settled, released = await release(scene)
    assert (settled, [job for job, _ in released]) == (1, jobs[1:2])


async def test_a_suspect_with_deliveries_left_is_parked_when_it_stalls_and_not_claimed(scene: Scene) -> None:
    await scene.agree(max_deliveries=9, recovery="embedded")
    jobs, one = await let_out(scene)
    await stall(scene, one)
    reply = await scene.autoclaim(max_deliveries=9)
    assert ([row[0] for row in reply[7]], reply[8]) == ([SUSPECTED], [])
    assert [job for _, job, _ in await parked(scene)] == [*jobs[1:], jobs[0]]


async def test_the_mark_alone_keeps_a_job_from_being_claimed(scene: Scene) -> None:
    await scene.agree(recovery="embedded")
    await scene.stalled("n", 1, *MARK)
    reply = await scene.autoclaim()
    assert ([row[0] for row in reply[7]], reply[8]) == ([SUSPECTED], [])


# ---- where nobody lets suspects out


@pytest.mark.parametrize("agreement", [{"served_until": 1}, {"recovery": ""}], ids=["leader gone", "no mode agreed"])
async def test_where_nobody_lets_suspects_out_what_is_given_back_is_ready_and_known_to_be_out(
    scene: Scene, agreement: dict[str, Any]
) -> None:
    jobs, one = await let_out(scene)
    await scene.agree(**agreement)
    await give_back(scene, one, "hand_back")
    state = await scene.state()
    [(_, *fields)] = state["orders"]["entries"]
    assert tuple(fields) == ready(jobs[0], 2, "w1,w1", "n", 1, copies=2, suspect=True)
    assert list(state["{orders}:suspects:billing"].values()) == ["stream,0"]
    assert (await release(scene))[1:] == (1, 0, []), "the next leader lets nobody out beside it"


async def test_a_caller_that_names_no_hash_gives_a_suspect_back_as_ever_with_its_mark(scene: Scene) -> None:
    jobs, one = await let_out(scene, 1)
    keys = scene.keys
    await scene.client.hset(keys.suspects, "untouched", "stream")
    reply = await scene.settle(item(one, "hand_back"), names_suspects=False)
    state = await scene.state()
    [(_, *fields)] = state["orders"]["entries"]
    assert (reply, tuple(fields)) == ([DONE], ready(jobs[0], 2, "w1,w1", "n", 1, copies=2, suspect=True))
    assert "untouched" in state["{orders}:suspects:billing"]


async def test_a_marked_job_that_nobody_let_out_is_not_convicted_the_first_time_and_runs_alone_the_next(
    scene: Scene,
) -> None:
    """Its hash entry was lost, or its producer wrote the mark: nobody knows in whose company it ran."""
    await scene.stalled("n", 1, "reaper.deliveries", 2, "reaper.job", "J", *MARK)
    assert rows(await scene.recover(E1)) == [(SUSPECTED, "w1", "J", 2)]
    assert await parked(scene) == [("front", "J", 2)]
    await release(scene)
    [one] = await read(scene)
    await stall(scene, one)
    assert rows(await scene.recover(one)) == [(DEAD, "w1", "J", 3)]


# ---- a producer that writes the mark


async def test_a_forged_mark_frees_no_suspect_and_convicts_none(scene: Scene) -> None:
    jobs, one = await let_out(scene, 2)
    await scene.add("n", 9, *MARK, "reaper.job", "forged", at="*")
    [forged] = await read(scene)
    await stall(scene, one, forged)
    assert rows(await scene.recover(one, forged)) == [(DEAD, "w1", jobs[0], 3), (SUSPECTED, "w1", "forged", 1)]
    assert [job for _, job, _ in await parked(scene)] == [jobs[1], "forged"], "behind the others"


async def test_a_forged_mark_puts_nobody_in_front(scene: Scene) -> None:
    jobs = await park(scene, 1)
    one = await scene.add("n", 9, *MARK[:1], "99")
    await scene.deliver(one)
    await scene.settle(item(one, "retry"))
    assert [job for _, job, _ in await parked(scene)] == [*jobs, one]


async def test_where_nobody_lets_suspects_out_a_forged_mark_changes_nothing(scene: Scene) -> None:
    await scene.agree(served_until=1)
    one = await scene.stalled("n", 1, *MARK)
    await scene.settle(item(one, "hand_back"))
    state = await scene.state()
    [(_, *fields)] = state["orders"]["entries"]
    assert tuple(fields) == ready(one, 0, "w1", "n", 1, suspect=True)
    assert not {"{orders}:scheduled:billing", "{orders}:suspects:billing"} & state.keys()


# ---- handed to somebody who may have been dead by then

OURS = "w1.0123456789ab"


async def out_at(scene: Scene, consumer: str, *, again: bool = False) -> str:
    """Have the suspect that is let out read, long ago; return its entry."""
    if again:
        await release(scene)
    [one] = await read(scene, consumer)
    await scene.deliver(one, consumer=consumer)
    return one


async def reasons(scene: Scene) -> list[Any]:
    """Return why suspects were parked, in order."""
    journal = (await scene.state())["{orders}:journal"]
    return [data.get("reason") for name, _, data in journal if name == "suspected"]


async def test_a_suspect_that_never_reached_its_worker_is_let_out_again_and_no_more_than_twice(scene: Scene) -> None:
    """A read of a worker that has just died is answered like any (seed 14779)."""
    [job] = await park(scene, 1)
    for times in (1, 2):
        one = await out_at(scene, OURS, again=True)
        assert rows(await scene.recover(one)) == [(SUSPECTED, OURS, job, 2)]
        assert await reasons(scene) == ["never_arrived"] * times
    one = await out_at(scene, OURS, again=True)
    assert rows(await scene.recover(one)) == [(DEAD, OURS, job, 3)]


async def test_a_suspect_that_its_worker_has_shown_to_have_got_is_convicted(scene: Scene) -> None:
    [job] = await park(scene, 1)
    one = await out_at(scene, OURS, again=True)
    assert await scene.extend(one, consumer=OURS, as_ours=True) == [1]
    assert await scene.client.hget(scene.keys.suspects, one) == await value_of(scene, one, arrived=1)
    await scene.deliver(one, consumer=OURS)
    assert rows(await scene.recover(one)) == [(DEAD, OURS, job, 3)]


async def value_of(scene: Scene, one: str, *, arrived: int) -> bytes:
    """Return what the hash says of a suspect whose delivery is seen from its last sign on."""
    found: list[Any] = await scene.client.xpending_range("orders", "billing", one, one, 1)
    _, _, idle_ms, times = found[0]
    known: Any = await scene.client.hget(scene.keys.suspects, one)
    since = int(known.split(b",")[3].partition(b"+")[0])
    assert abs(since - (await scene.now_ms() - idle_ms)) < 10_000
    return f"stream,0,{times},{since}+{arrived}".encode()


async def test_a_worker_that_is_not_ours_shows_nothing_and_is_believed(scene: Scene) -> None:
    [job] = await park(scene, 1)
    one = await out_at(scene, "doomed", again=True)
    assert rows(await scene.recover(one)) == [(DEAD, "doomed", job, 3)]


async def test_what_has_reached_one_worker_is_not_said_of_the_next_delivery(scene: Scene) -> None:
    [job] = await park(scene, 1)
    one = await out_at(scene, OURS, again=True)
    await scene.extend(one, consumer=OURS, as_ours=True)
    await scene.deliver(one, consumer=OURS, times=2)
    assert rows(await scene.recover(one)) == [(SUSPECTED, OURS, job, 2)]
    assert await reasons(scene) == ["never_arrived"]


async def test_what_has_reached_its_worker_has_not_proved_its_life_by_that(scene: Scene) -> None:
    """Its handler has not begun; the next suspect would crash in its company."""
    jobs, one = await let_out(scene)
    await scene.deliver(one, consumer=OURS, idle_ms=10_000)
    await look(scene)
    assert await scene.extend(one, consumer=OURS, as_ours=True) == [1]
    assert (await release(scene))[3] == []
    await scene.client.hset(scene.keys.suspects, one, f"stream,0,1,{await scene.now_ms() - 10_000}+1")
    assert await scene.extend(one, consumer=OURS, as_ours=True) == [1]
    assert [job for job, _ in (await release(scene))[3]] == jobs[1:2], "and now it has"


async def test_what_waits_at_its_worker_has_not_proved_its_life(scene: Scene) -> None:
    """It runs apart from other jobs, and has not begun; of plain workers nobody knows."""
    jobs, one = await let_out(scene)
    await scene.deliver(one, consumer=OURS, idle_ms=10_000)
    await look(scene)
    assert await scene.extend(one, consumer=OURS) == [1]
    assert (await release(scene))[3] == []
    await scene.deliver(one, consumer="plain", idle_ms=0)
    assert [job for job, _ in (await release(scene))[3]] == jobs[1:2]


async def test_what_is_read_again_after_a_lost_reply_has_reached_nobody_yet(scene: Scene) -> None:
    [job] = await park(scene, 1)
    one = await out_at(scene, OURS, again=True)
    await scene.extend(one, consumer=OURS, as_ours=True)
    await scene.adopt(case="reread", from_consumer=OURS, consumer=OURS)
    assert await scene.client.hget(scene.keys.suspects, one) == b"stream,0"
    await scene.deliver(one, consumer=OURS)
    assert rows(await scene.recover(one)) == [(SUSPECTED, OURS, job, 2)]


async def test_company_is_noted_behind_an_arrival(scene: Scene) -> None:
    await park(scene, 2)
    ids = []
    for _ in range(2):
        await release(scene)
        [one] = await read(scene, OURS)
        ids.append(one)
        await scene.client.hset(scene.keys.suspects, one, f"stream,0,1,{await scene.now_ms() - 10_000}+1")
        await scene.extend(one, consumer=OURS)
    await scene.deliver(*ids, consumer=OURS)
    assert [row[0] for row in rows(await scene.recover(*ids))] == [SUSPECTED, SUSPECTED]
    assert await reasons(scene) == ["crashed_in_company"] * 2


# ---- a last delivery that nobody let out


@pytest.mark.parametrize("embedded", [False, True], ids=["leader", "embedded"])
@pytest.mark.parametrize("policy", ["stream", "retry-stream", "in-place"])
async def test_what_failed_and_then_crashes_is_let_out_alone_before_it_is_given_up(
    scene: Scene, policy: str, embedded: bool
) -> None:
    """The worker that it failed in gave it its last delivery; whatever ran beside it may have killed that."""
    await scene.agree(policy=policy, max_deliveries=3, recovery="embedded" if embedded else "reaper")
    source = scene.keys.retry if policy == "retry-stream" else scene.keys.stream
    await scene.client.xgroup_create(scene.keys.retry, scene.keys.group, "0", mkstream=True)
    one = await scene.stalled(times=2)
    assert await scene.settle(item(one, "nack", times=2)) == [DONE]
    for became, times in ((SUSPECTED, 3), (DEAD, 4)):
        if policy != "in-place":
            [one] = await read(scene, stream=source)
        await scene.deliver(one, times=times if policy == "in-place" else 1, stream=source)
        if embedded:
            found = [row[0] for row in (await scene.autoclaim(source=source, policy=policy))[7]]
        else:
            found = [row[0] for row in rows(await scene.recover(one, source=source, policy=policy))]
        assert found == [became]
        await scene.release(fence="" if embedded else FENCE, policy=policy)
    assert await reasons(scene) == ["crashed_in_company"]


async def test_what_failed_and_then_crashed_counts_no_more_than_its_limit(scene: Scene) -> None:
    one = await scene.stalled("reaper.deliveries", 2)
    assert rows(await scene.recover(one)) == [(SUSPECTED, "w1", one, 2)]
    assert await parked(scene) == [("parked", one, 2)]


async def test_where_a_limit_was_lowered_a_crash_convicts_nobody_that_was_not_let_out(scene: Scene) -> None:
    one = await scene.stalled(times=4)
    assert rows(await scene.recover(one, max_deliveries=2)) == [(SUSPECTED, "w1", one, 1)]


# ---- proof of life, and running alone


async def look(scene: Scene) -> None:
    """Have the delivery of what is out seen."""
    await release(scene, journal=False)


async def extended(scene: Scene, one: str, after_ms: int, consumer: str = "w1") -> None:
    """Extend a delivery, as if it had begun ``after_ms`` ago; whoever lets suspects out has seen it begin."""
    await scene.deliver(one, consumer=consumer, idle_ms=after_ms)
    await look(scene)
    assert await scene.extend(one, consumer=consumer) == [1]


async def test_a_suspect_that_has_proved_its_life_lets_the_next_one_out(scene: Scene) -> None:
    jobs, one = await let_out(scene)
    await scene.deliver(one, idle_ms=10_000)
    await look(scene)
    assert (await release(scene))[3] == [], "it has been delivered, and no more"
    assert await scene.extend(one) == [1]
    assert [job for job, _ in (await release(scene))[3]] == jobs[1:2]
    assert (await release(scene))[1:] == (2, 0, []), "the second one has not proved its life"


async def test_what_is_no_extension_proves_nothing(scene: Scene) -> None:
    _, one = await let_out(scene)
    await scene.deliver(one, idle_ms=10_000)
    await look(scene)
    await scene.client.xclaim("orders", "billing", "w2", 0, [one])  # counted: it was delivered again
    assert (await release(scene))[3] == []
    await scene.deliver(one, consumer="w2", times=3, idle_ms=10_000)  # one that nobody has seen yet: it began long ago
    await look(scene)
    await scene.adopt(case="reread", from_consumer="w2", consumer="w2")  # its first reply was lost: nothing ran
    assert (await release(scene))[3] == []


async def test_no_more_than_64_are_out_however_many_have_proved_their_life(scene: Scene) -> None:
    await park(scene, 70)
    out = 0
    for _ in range(66):
        await release(scene, journal=False)
        for one in await read(scene):
            await extended(scene, one, 10_000)
        out = len(await scene.pending())
    assert out == 64


async def test_one_that_was_extended_for_a_visibility_timeout_is_in_nobodys_way(scene: Scene) -> None:
    await park(scene, 70)
    for _ in range(66):
        await release(scene, journal=False)
        for one in await read(scene):
            await extended(scene, one, 40_000)
    assert len(await scene.pending()) == 66


async def crash_in_company(scene: Scene, count: int, others: int = 0) -> list[str]:
    """Let suspects out that prove their lives and crash together; return their jobs, and those that stay parked."""
    jobs = await park(scene, count + others)
    for _ in range(count):
        await release(scene, journal=False)
        for one in await read(scene):
            await extended(scene, one, 10_000)
    together = [one for one, _, _ in await scene.pending()]
    await stall(scene, *together)
    assert [row[0] for row in rows(await scene.recover(*together))] == [SUSPECTED] * count
    return jobs


async def test_one_that_crashed_in_company_runs_alone_even_when_it_has_proved_its_life(scene: Scene) -> None:
    jobs = await crash_in_company(scene, 2)
    assert sorted(await parked(scene)) == [("front", job, 2) for job in jobs]
    await release(scene)
    [one] = await read(scene)
    await extended(scene, one, 10_000)
    assert (await release(scene))[1:] == (1, 0, [])
    await stall(scene, one)
    assert rows(await scene.recover(one))[0][0] == DEAD, "a poison that kills after its first extension is found"


async def test_while_one_runs_alone_nobody_is_let_out_though_it_has_proved_its_life(scene: Scene) -> None:
    *_, other = await crash_in_company(scene, 2, others=1)
    await release(scene)
    [one] = await read(scene)
    await scene.settle(item(one, "ack"))
    await release(scene)
    [one] = await read(scene)
    await extended(scene, one, 10_000)
    assert (await release(scene))[3] == []
    await scene.settle(item(one, "ack"))
    assert [job for job, _ in (await release(scene))[3]] == [other]


async def test_one_that_crashed_in_company_waits_until_nobody_is_out_and_nobody_passes_it(scene: Scene) -> None:
    first, second, other = await crash_in_company(scene, 2, others=1)
    await release(scene)
    [one] = await read(scene)
    await give_back(scene, one, "retry")
    assert [job for _, job, _ in await parked(scene)][-1] in {first, second}
    await release(scene)
    [one] = await read(scene)
    await scene.settle(item(one, "ack"))
    assert [job for job, _ in (await release(scene))[3]] == [other]
    assert (await release(scene))[3] == [], "the retried one still has to run alone"


async def test_one_that_crashed_in_company_is_not_let_out_beside_one_that_has_proved_its_life(scene: Scene) -> None:
    jobs = await park(scene, 3)
    entries = {}
    for consumer in ("w9", "w1", "w1"):
        await release(scene, journal=False)
        [one] = await read(scene, consumer)
        await scene.deliver(one, consumer=consumer, idle_ms=10_000)
        await look(scene)
        assert await scene.extend(one, consumer=consumer) == [1]
        entries[one] = consumer
    together = [one for one, consumer in entries.items() if consumer == "w1"]
    await stall(scene, *together)
    assert [row[0] for row in rows(await scene.recover(*together))] == [SUSPECTED] * 2
    assert (await release(scene))[1:] == (1, 0, []), "the one that was alone on its consumer is out, and proved"
    assert sorted(job for _, job, _ in await parked(scene)) == sorted(jobs[1:])


async def test_one_that_runs_alone_is_in_nobodys_way_after_a_visibility_timeout_and_after_a_second_crash_it_is(
    scene: Scene,
) -> None:
    await crash_in_company(scene, 2)
    await release(scene)
    [first] = await read(scene)
    await extended(scene, first, 40_000)
    await release(scene)
    [second] = await read(scene)
    await stall(scene, first, second)
    assert [row[0] for row in rows(await scene.recover(first, second))] == [SUSPECTED] * 2
    await release(scene)
    [first] = await read(scene)
    await extended(scene, first, 40_000)
    assert (await release(scene))[3] == []
    await stall(scene, first)
    assert rows(await scene.recover(first))[0][0] == DEAD


async def test_how_it_crashed_is_remembered_by_one_that_is_handed_back(scene: Scene) -> None:
    await crash_in_company(scene, 2)
    await release(scene)
    [one] = await read(scene)
    await give_back(scene, one, "hand_back")
    await release(scene)
    [one] = await read(scene)
    await extended(scene, one, 10_000)
    assert (await release(scene))[3] == [], "it still runs alone"


async def test_suspects_that_crashed_together_are_judged_before_they_are_claimed(scene: Scene) -> None:
    await scene.stalled()  # in front of them: what follows on a claim that went well may be claimed many at a time
    jobs = await park(scene, 2)
    for _ in jobs:
        await release(scene, journal=False)
        for one in await read(scene):
            await extended(scene, one, 10_000)
    _, *together = [one for one, _, _ in await scene.pending()]
    await stall(scene, *together)
    await scene.agree(recovery="embedded")
    reply = await scene.autoclaim()
    assert [row[0] for row in reply[7]] == [SUSPECTED, SUSPECTED], "neither is known to have crashed by itself"
    assert len(reply[8]) == 1
    assert [job for _, job, _ in await parked(scene)] == jobs


async def test_a_suspect_beside_one_of_another_stream_is_company(scene: Scene) -> None:
    """The policy was changed while suspects were out."""
    retry = scene.keys.retry
    await scene.client.xgroup_create(retry, "billing", "0", mkstream=True)
    await scene.agree(suspects_settled=101)
    jobs = await park(scene, 2)
    await release(scene, policy="stream")
    both = await read(scene)
    await scene.add("n", 3, stream=retry)
    await scene.deliver(entry_id(3), stream=retry)
    await scene.settle(item(both[1], "ack"))
    await scene.client.hset(scene.keys.suspects, entry_id(3), "retry")
    await stall(scene, both[0])
    assert rows(await scene.recover(both[0])) == [(SUSPECTED, "w1", jobs[0], 2)]


# ---- adoption


async def test_where_somebody_lets_suspects_out_adopting_parks_them(scene: Scene) -> None:
    await scene.stalled("n", 1, times=2)
    await scene.stalled("n", 2, times=1)
    reply = await scene.adopt()
    assert (reply[1:4], [row[:2] for row in reply[4]]) == ([0, [], []], [[entry_id(2).encode(), 2]])
    assert await parked(scene) == [("parked", E1, 2)]
    name, job, data = (await scene.state())["{orders}:journal"][0]
    assert (name, job, data["mode"], data["reason"]) == ("suspected", E1, "adopt", "last_delivery")


async def test_embedded_workers_that_have_set_nothing_let_suspects_out_too(scene: Scene) -> None:
    """What they have not set is not in the agreement: they go by the defaults."""
    await scene.client.delete(scene.keys.agreement, scene.keys.fence)
    await scene.agree(recovery="embedded")
    await scene.stalled(times=2)
    assert await scene.adopt(suspect_room=1) == [b"", 0, [], [], []]
    assert await parked(scene) == [("parked", E1, 2)]


async def test_a_suspect_whose_process_ended_with_it_alone_is_given_up_at_once(scene: Scene) -> None:
    jobs, one = await let_out(scene, 2)
    await scene.deliver(one, idle_ms=5)
    reply = await scene.adopt(from_consumer="w1")
    assert [row[:3] for row in reply[2]] == [[jobs[0].encode(), one.encode(), 3]]
    _, _, settled, released = await release(scene)
    assert (settled, [job for job, _ in released]) == (0, jobs[1:])


async def test_suspects_whose_process_ended_with_both_are_parked_again(scene: Scene) -> None:
    jobs = await park(scene, 2)
    await scene.agree(suspects_settled=101)
    await release(scene)
    await read(scene)
    reply = await scene.adopt(from_consumer="w1")
    assert reply[1:] == [0, [], [], []]
    assert sorted(await parked(scene)) == [("front", job, 2) for job in jobs]


async def test_adopting_parks_nothing_where_a_second_group_forbids_copies(scene: Scene) -> None:
    await scene.stalled(times=2)
    await scene.client.xgroup_create("orders", "audit", "0")
    assert (await scene.adopt())[1] == 1
    assert await parked(scene) == []


# ---- other ends


async def test_a_dead_letter_that_is_given_back_is_on_probation_no_more(scene: Scene) -> None:
    _, one = await let_out(scene, 1)
    await scene.settle(item(one, "reject"))
    [letter] = (await scene.state())["{orders}:dead:billing"]["entries"]
    assert "reaper.suspect" not in letter


async def test_a_suspect_that_was_out_before_there_was_a_mark_behaves_as_ever(scene: Scene) -> None:
    jobs = await park(scene, 2)
    old = await scene.stalled("n", 9, "reaper.deliveries", 2)
    await scene.client.hset(scene.keys.suspects, old, "stream")
    assert (await release(scene))[1:] == (1, 0, [])
    await scene.settle(item(old, "hand_back"))
    assert [job for job, _ in (await release(scene))[3]] == jobs[:1]
