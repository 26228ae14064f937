"""What vanished by XGROUP DELCONSUMER or DESTROY while a worker ran it is that worker's again, and nothing else is."""

from typing import Any

import pytest

from tests.scripts.scene import Scene, Word, entry_id, item
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

E1 = entry_id(1)
REFUSED, VANISHED = 0, 3
EXTENDED_TOO_LATE, HELD_TOO_LATE, SETTLED_TOO_LATE = 4, 2, 5
DONE, DEAD, UNKNOWN = 1, 2, 3
VISIBILITY_MS = 30_000
WORD = {"member:w1": "1,30000,3,9999999999999,"}
"""What the worker goes by. Who deletes its consumer and is one of ours takes it away as well."""


@pytest.fixture
async def held(scene: Scene) -> Scene:
    """A worker runs the first of two entries, in a group that has agreed on something."""
    await scene.agree(policy="stream", max_deliveries=3, visibility_ms=VISIBILITY_MS, **WORD)
    await scene.stalled()
    await scene.add()
    return scene


async def proven(scene: Scene, times: int = 1, ago_ms: int = 100) -> str:
    """Return a delivery count with when the delivery was proven alive."""
    return f"{times},{await scene.now_ms() - ago_ms}"


async def extend(scene: Scene, *, times: Word = "", source: str = "orders", stream: str = "orders") -> int:
    """Run ``extend_visibility`` for the first entry, proven alive lately; returns its result."""
    words: list[Word] = ["billing", "w1", E1, times or await proven(scene)]
    script = load_script("workers.protocol", "extend_visibility")
    reply: Any = await script.run(scene.client, [source, scene.keys.journal, scene.keys.agreement, stream], words)
    return int(reply[0])


async def hold_again(scene: Scene, *, times: Word = "") -> int:
    """Run ``hold_again`` for the first entry, proven alive lately; returns its result."""
    reply: Any = await load_script("workers.protocol", "hold_again").run(
        scene.client,
        ["orders", "orders", scene.keys.agreement, scene.keys.suspects, scene.keys.notes, scene.keys.journal],
        ["billing", "w1", 1, 1_000, E1, E1, times or await proven(scene)],
    )
    return int(reply[0])


async def vanish(scene: Scene, how: str) -> None:
    if how == "consumer":
        await scene.client.xgroup_delconsumer("orders", "billing", "w1")
    else:
        await scene.client.xgroup_destroy("orders", "billing")
        await scene.client.xgroup_create("orders", "billing", E1)


@pytest.mark.parametrize("how", ["consumer", "group"])
async def test_what_vanished_is_told_from_what_is_lost_and_can_be_held_again(held: Scene, how: str) -> None:
    await vanish(held, how)
    assert await extend(held) == VANISHED
    assert await held.pending() == [], "telling is not taking"
    assert await hold_again(held) == 1
    assert await held.pending() == [(E1, "w1", 1)]
    assert await hold_again(held) == 1, "the reply was lost"
    assert (await held.idle_ms())[E1] < 5_000


@pytest.mark.parametrize(
    ("source", "note", "served_until", "is_out"),
    [
        ("field", "", 10**14, b"stream,0+2"),
        ("note", "-1,0,1,,w1", 10**14, b"stream,1+2"),
        ("note", "-1,0,,,w1", 10**14, None),
        ("", "", 10**14, None),
        ("field", "", 1, None),
    ],
    ids=["copied", "in place", "no suspect there", "no suspect", "nobody lets suspects out"],
)
async def test_a_suspect_that_is_held_again_is_out_again(
    scene: Scene, source: str, note: str, served_until: int, is_out: bytes | None
) -> None:
    """Somebody has deleted its consumer: it was taken for settled, and the next one let out (seed 2595)."""
    await scene.agree(policy="stream", max_deliveries=3, visibility_ms=VISIBILITY_MS, **WORD)
    await scene.agree(recovery="reaper", served_until=served_until)
    await scene.stalled("n", 1, *(("reaper.suspect", "1") if source == "field" else ()), times=2)
    if note:
        await scene.client.hset(scene.keys.notes, E1, note)
    await vanish(scene, "consumer")
    keys = ["orders", "orders", scene.keys.agreement, scene.keys.suspects, scene.keys.notes]
    words: list[Word] = ["billing", "w1", 0, 1_000, E1, E1, await proven(scene, 2)]
    for _ in range(2):
        assert await load_script("workers.protocol", "hold_again").run(scene.client, keys, words) == [1]
        assert await scene.client.hget(scene.keys.suspects, E1) == is_out
    if is_out:
        await scene.client.hset(scene.keys.suspects, E1, "stream,0,2,1700000000000+2!")
        await vanish(scene, "consumer")
        await load_script("workers.protocol", "hold_again").run(scene.client, keys, words)
        assert await scene.client.hget(scene.keys.suspects, E1) == b"stream,0,2,1700000000000+2!", "it was still out"


@pytest.mark.parametrize(
    ("event", "data", "is_over"),
    [
        ("acked", '{"v":1,"group":"billing","entry":"%s","delivery":1}', True),
        ("acked", '{"v":2,"group":"billing","entries":["7-0","%s"],"delivery":1}', True),
        ("acked", '{"v":1,"group":"billing","job":"%s","entry":"7-0","delivery":1}', True),
        ("dead_lettered", '{"v":1,"group":"billing","entry":"%s","dead_letter":"7-0"}', True),
        ("acked", '{"v":1,"group":"search","entry":"%s","delivery":1}', False),
        ("dead_lettered", '{"v":1,"group":"billing","entry":"7-0","dead_letter":"%s"}', False),
        ("nacked", '{"v":1,"group":"billing","entry":"%s","delivery":1}', False),
        ("refused", '{"v":1,"group":"billing","entry":"%s","delivery":1}', False),
        ("acked", '{"v":1,"group":"billing","entry":"7-0","error":"\\"%s\\""}', False),
    ],
)
@pytest.mark.parametrize("when", ["since", "before"])
async def test_what_another_delivery_has_settled_since_is_not_held_again(
    held: Scene, event: str, data: str, is_over: bool, when: str
) -> None:
    """A server that lost its latest writes handed the entry out anew, and that delivery was settled (seed 9000036)."""
    await vanish(held, "consumer")
    at_ms = await held.now_ms() - (100 if when == "since" else 1_000)
    await held.client.xadd(held.keys.journal, {"event": event, "data": data % E1}, id=f"{at_ms}-0")
    alive = await proven(held, ago_ms=500)
    gone = is_over and when == "since"
    assert await extend(held, times=alive) == (REFUSED if gone else VANISHED)
    assert await hold_again(held, times=alive) == (0 if gone else 1)
    await vanish(held, "consumer")
    reply = await held.settle(item(E1, "ack"), proven_ms=alive.partition(",")[2])
    assert reply == ([REFUSED] if gone else 1)
    assert await held.pending() == []


EMBEDDED = {"recovery": "embedded", **WORD}
"""Embedded workers that set nothing agree on nothing else: their timeout stands in their words."""


async def test_what_will_be_delivered_anew_has_not_vanished(held: Scene) -> None:
    """A server that has lost its latest writes knows of no delivery: held again, the job would be in two places."""
    await held.client.xgroup_destroy("orders", "billing")
    await held.client.xgroup_create("orders", "billing", "0")
    assert await extend(held) == REFUSED
    assert await hold_again(held) == 0
    assert await held.pending() == []


@pytest.mark.parametrize("how", ["consumer", "group"])
@pytest.mark.parametrize("set_by_somebody", [{}, {"policy": "stream"}, {"policy": "retry-stream"}])
async def test_embedded_workers_hold_on_to_what_they_have_proven_alive_lately(
    scene: Scene, how: str, set_by_somebody: dict[str, Word]
) -> None:
    await scene.agree(**EMBEDDED, **set_by_somebody)
    await scene.stalled()
    await vanish(scene, how)
    alive = await proven(scene, 1, ago_ms=100)
    assert await extend(scene, times=alive) == VANISHED
    assert await hold_again(scene, times=alive) == 1
    assert await scene.pending() == [(E1, "w1", 1)]


@pytest.mark.parametrize("set_by_somebody", [{}, {"policy": "stream"}, {"policy": "retry-stream"}])
@pytest.mark.parametrize("ago_ms", [20_001, None])
async def test_an_entry_that_another_embedded_worker_has_settled_where_it_lies_is_not_settled_again(
    scene: Scene, set_by_somebody: dict[str, Word], ago_ms: int | None
) -> None:
    await scene.agree(**EMBEDDED, **set_by_somebody)
    await scene.stalled()
    await scene.deliver(E1, consumer="w2", times=2)
    await scene.client.xack("orders", "billing", E1)
    before = await scene.state()
    late = 1 if ago_ms is None else await proven(scene, 1, ago_ms)
    assert (await extend(scene, times=late), await hold_again(scene, times=late)) == (REFUSED, 0)
    assert (await scene.settle(item(E1, "ack"), journal=False)) == [REFUSED]
    assert await scene.state() == before


async def test_callers_that_name_no_agreement_are_refused_as_before(held: Scene) -> None:
    await vanish(held, "consumer")
    assert await held.extend(E1) == [REFUSED]


@pytest.mark.parametrize(
    "otherwise", ["another's", "no policy", "no word", "counted anew", "not proven alive", "a word of after"]
)
async def test_what_may_be_somebody_elses_is_refused(held: Scene, otherwise: str) -> None:
    await vanish(held, "consumer")
    match otherwise:
        case "another's":
            await held.deliver(E1, consumer="w2")
        case "no policy":
            await held.client.hdel(held.keys.agreement, "policy")
        case "no word":  # a later process of the same name has taken the delivery over, and settled it
            await held.client.hdel(held.keys.agreement, "member:w1")
        case "a word of after":  # the same, and it has joined again
            await held.agree(**{"member:w1": f"1,30000,3,9999999999999,{await held.now_ms() - 50},"})
        case "counted anew":
            await held.deliver(E1, consumer="w1", times=2)
    before = await held.state()
    times: Word = 1 if otherwise == "not proven alive" else await proven(held, ago_ms=10_000)
    assert (await extend(held, times=times), await hold_again(held, times=times)) == (REFUSED, 0)
    proven_ms = None if times == 1 else await held.now_ms() - 10_000
    assert (await held.settle(item(E1, "ack"), journal=False, proven_ms=proven_ms)) == [REFUSED]
    assert await held.state() == before


@pytest.mark.parametrize(("policy", "times"), [("retry-stream", 1), ("stream", 1), ("stream", 3), ("retry-stream", 3)])
async def test_what_was_proven_alive_lately_can_only_have_vanished(held: Scene, policy: str, times: int) -> None:
    await held.agree(policy=policy, visibility_ms=VISIBILITY_MS)
    await vanish(held, "consumer")
    alive = await proven(held, times, ago_ms=100)
    assert await extend(held, times=alive) == VANISHED
    assert await hold_again(held, times=alive) == 1
    assert await held.pending() == [(E1, "w1", times)]
    assert await extend(held, times=alive) == 1


@pytest.mark.parametrize(("policy", "times"), [("retry-stream", 1), ("stream", 3)])
@pytest.mark.parametrize("otherwise", ["long ago", "in the future", "another's"])
async def test_a_late_call_and_what_has_another_owner_are_refused_however_lately_it_was_proven_alive(
    held: Scene, policy: str, times: int, otherwise: str
) -> None:
    ago_ms = {"long ago": 20_001, "in the future": -10_000}.get(otherwise, 100)
    await held.agree(policy=policy, visibility_ms=VISIBILITY_MS)
    await vanish(held, "consumer")
    if otherwise == "another's":
        await held.deliver(E1, consumer="w2")
    before = await held.state()
    late = await proven(held, times, ago_ms)
    assert (await extend(held, times=late), await hold_again(held, times=late)) == (REFUSED, 0)
    assert await held.settle(item(E1, "ack", times=times), journal=False, proven_ms=await held.now_ms() - ago_ms) == [
        REFUSED
    ]
    assert await held.state() == before


@pytest.mark.parametrize(("ago_ms", "result"), [(4_000, VANISHED), (20_000, REFUSED)])
async def test_lately_is_by_the_workers_own_timeout_where_a_longer_one_was_agreed_on_while_it_was_silent(
    scene: Scene, ago_ms: int, result: int
) -> None:
    """Whoever took the delivery over may have gone by the shorter one, and settled it."""
    await scene.agree(
        policy="stream", max_deliveries=3, visibility_ms=60_000, **{"member:w1": "1,10000,3,9999999999999,"}
    )
    await scene.stalled()
    await vanish(scene, "consumer")
    assert await extend(scene, times=await proven(scene, 1, ago_ms)) == result


async def test_what_was_proven_by_a_shorter_timeout_proves_nothing_by_the_longer_one(scene: Scene) -> None:
    await scene.agree(
        policy="stream", max_deliveries=3, visibility_ms=60_000, **{"member:w1": "1,10000,3,9999999999999,"}
    )
    await scene.stalled()
    await vanish(scene, "consumer")
    long_ago = await proven(scene, 1, 20_000)
    await load_script("workers.protocol", "join_group").run(
        scene.client,
        [scene.keys.stream, scene.keys.retry, scene.keys.agreement, scene.keys.fence],
        [scene.keys.group, "0", "", "", "", "reaper", "w1", "w1", 60_000, 1, "", ""],
    )
    assert await extend(scene, times=long_ago) == REFUSED
    assert await extend(scene, times=await proven(scene, 1, 0)) == VANISHED


@pytest.mark.parametrize("rules", [{"policy": "stream"}, {"policy": "retry-stream"}, {"recovery": "embedded"}])
@pytest.mark.parametrize(("former_until", "is_ours"), [(9_999_999_999_999, True), (1, False)])
async def test_lately_is_by_the_former_timeout_while_that_counts(
    scene: Scene, rules: dict[str, Word], former_until: int, is_ours: bool
) -> None:
    """It has not read the shorter one, so it has not proven its life by it; and nobody takes anything by it."""
    former = {"former_until": former_until, "former_visibility_ms": 30_000}
    word = {"member:w1": "1,30000,3,9999999999999,"}
    await scene.agree(**rules, **former, **word, max_deliveries=3, visibility_ms=500)
    await scene.stalled()
    await vanish(scene, "consumer")
    at_its_last = await proven(scene, 3, ago_ms=10_000)
    told = VANISHED if is_ours else REFUSED
    assert (await extend(scene, times=at_its_last), await hold_again(scene, times=at_its_last)) == (told, int(is_ours))
    assert await scene.pending() == ([(E1, "w1", 3)] if is_ours else [])


@pytest.mark.parametrize("verb", ["ack", "nack", "retry", "hand_back", "reject"])
@pytest.mark.parametrize(("until_ms", "counts"), [(-1, False), (5_000, True)])
async def test_a_call_that_comes_when_its_caller_has_given_it_up_takes_nothing_back(
    held: Scene, verb: str, until_ms: int, *, counts: bool
) -> None:
    """For it may have settled the delivery by another one, which came before. Who still waits asks again."""
    await vanish(held, "consumer")
    now_ms = await held.now_ms()
    proof = f"{now_ms - 100},{now_ms + until_ms}"
    before = await held.state()
    assert await extend(held, times=f"1,{proof}") == (VANISHED if counts else EXTENDED_TOO_LATE)
    if not counts:
        assert await hold_again(held, times=f"1,{proof}") == HELD_TOO_LATE
    reply = await held.settle(item(E1, verb), proven_ms=proof)
    assert (reply == [SETTLED_TOO_LATE]) is not counts
    if not counts:
        assert await held.state() == before


async def test_what_is_pending_is_settled_and_extended_however_late_the_call_is(held: Scene) -> None:
    proof = f"{await held.now_ms() - 100},{await held.now_ms() - 1}"
    assert (await extend(held, times=f"1,{proof}"), await hold_again(held, times=f"1,{proof}")) == (1, 1)
    assert await extend(held, times=f"2,{proof}") == REFUSED, "it was delivered again"
    assert await held.settle(item(E1, "ack"), proven_ms=proof) == 1
    assert await held.settle(item(E1, "ack"), proven_ms=proof, reply_was_lost=True) == [3], "the first one did it"


@pytest.mark.parametrize("verb", ["ack", "nack", "reject"])
async def test_a_verdict_on_what_was_proven_alive_lately_counts_once(held: Scene, verb: str) -> None:
    await held.agree(policy="retry-stream", visibility_ms=VISIBILITY_MS)
    await vanish(held, "consumer")
    reply = await held.settle(
        item(E1, verb), item(E1, verb), policy="retry-stream", proven_ms=await held.now_ms() - 100
    )
    assert reply[0] != REFUSED
    assert reply[1] == REFUSED, "it is no longer ours, although its entry is still there"
    assert await held.pending() == []


@pytest.mark.parametrize("how", ["consumer", "group"])
@pytest.mark.parametrize("verb", ["ack", "nack", "retry", "hand_back", "reject"])
async def test_a_verdict_on_what_vanished_counts(held: Scene, how: str, verb: str) -> None:
    await vanish(held, how)
    reply = await held.settle(item(E1, verb), proven_ms=await held.now_ms() - 100)
    assert reply == 1 or reply[0] == 1 or reply[0][0] == 2
    state = await held.state()
    assert (await held.pending(), [event for event, _, _ in state["{orders}:journal"]]) == (
        [],
        [{"ack": "acked", "hand_back": "handed_back", "reject": "dead_lettered"}.get(verb, "nacked")],
    )


async def test_what_was_settled_by_a_call_whose_reply_was_lost_is_not_settled_again(held: Scene) -> None:
    await held.settle(item(E1, "ack"))
    before = await held.state()
    assert await held.settle(item(E1, "ack"), reply_was_lost=True) == [3]
    assert await held.state() == before


@pytest.mark.parametrize("how", ["consumer", "group"])
@pytest.mark.parametrize("verb", ["nack", "retry", "hand_back"])
async def test_a_verdict_that_is_sent_again_counts_where_the_entry_shows_that_the_first_call_never_came(
    held: Scene, how: str, verb: str
) -> None:
    await vanish(held, how)
    alive = await held.now_ms() - 100
    assert await held.settle(item(E1, verb), reply_was_lost=True, proven_ms=alive) == [DONE]
    after = await held.state()
    assert await held.settle(item(E1, verb), reply_was_lost=True, proven_ms=alive) == [UNKNOWN]
    assert await held.state() == after
    entries: Any = await held.client.xrange("orders")
    assert [b"reaper.job" in fields for _, fields in entries] == [False, True], "ready, once"


@pytest.mark.parametrize("source", ["orders", "{orders}:retry:billing"])
async def test_an_acknowledgement_that_is_sent_again_deletes_where_the_first_call_never_came(
    scene: Scene, source: str
) -> None:
    await scene.agree(policy="retry-stream", max_deliveries=3, visibility_ms=VISIBILITY_MS, **WORD)
    await scene.client.xgroup_create(scene.keys.retry, "billing", "0", mkstream=True)
    await scene.client.xadd(source, {"payload": "1"}, id=E1)
    await scene.client.xreadgroup("billing", "w1", {source: ">"})
    await scene.client.xgroup_delconsumer(source, "billing", "w1")
    assert (
        await scene.settle(
            item(E1, "ack"), source=source, reply_was_lost=True, delete_acked=True, proven_ms=await scene.now_ms() - 100
        )
        == 1
    )
    assert await scene.client.xlen(source) == 0


@pytest.mark.parametrize("policy", ["stream", "retry-stream", "in-place"])
@pytest.mark.parametrize(("verb", "times"), [("nack", 1), ("nack", 3), ("retry", 1), ("hand_back", 1), ("reject", 1)])
async def test_a_verdict_whose_reply_was_lost_is_never_carried_out_twice(
    held: Scene, policy: str, verb: str, times: int
) -> None:
    await held.agree(policy=policy)
    await held.deliver(E1, times=times)
    alive = await held.now_ms() - 100
    await held.settle(item(E1, verb, times=times), proven_ms=alive)
    before = await held.state()
    assert await held.settle(item(E1, verb, times=times), reply_was_lost=True, proven_ms=alive) == [UNKNOWN]
    assert await held.state() == before


@pytest.mark.parametrize(
    ("policy", "verb", "times", "agreed_later"),
    [
        ("stream", "nack", 3, False),
        ("stream", "reject", 1, False),
        ("retry-stream", "nack", 1, False),
        ("in-place", "nack", 1, False),
        ("stream", "nack", 1, True),
    ],
)
async def test_where_the_entry_would_be_there_in_either_case_nobody_can_know(
    held: Scene, policy: str, verb: str, times: int, agreed_later: bool
) -> None:
    await held.deliver(E1, times=times)
    await vanish(held, "consumer")
    await held.agree(policy=policy, version=await held.now_ms() if agreed_later else 1)
    before = await held.state()
    alive = await held.now_ms() - 100
    assert await held.settle(item(E1, verb, times=times), reply_was_lost=True, proven_ms=alive) == [UNKNOWN]
    assert await held.state() == before


@pytest.mark.parametrize(
    ("policy", "verb", "times"),
    [("stream", "nack", 3), ("stream", "reject", 1), ("retry-stream", "nack", 1), ("retry-stream", "ack", 1)],
)
@pytest.mark.parametrize("told", ["delivered", "ended", "since then only", "nothing", "more than is looked at"])
async def test_the_journal_tells_whether_an_earlier_call_has_settled_it(
    held: Scene, policy: str, verb: str, times: int, told: str
) -> None:
    """Else a job that was to be retried would be gone, its consumer deleted while Redis was away (seed 3200508)."""
    await held.deliver(E1, times=times)
    await vanish(held, "consumer")
    await held.agree(policy=policy)
    alive = await held.now_ms() - 100
    journal = held.keys.journal
    if told not in ("nothing", "since then only"):
        await held.client.xadd(journal, {"event": "acked", "job": E1, "data": f'{{"entry":"{E1}"}}'}, id="7-1")
    if told != "nothing":
        event = "delivered" if told == "delivered" else "nacked"
        of = E1 if told == "ended" else E1.replace("-", "-7")
        data = f'{{"entry":"{E1 if event == "delivered" else of}","delivery":1}}'
        for _ in range(1_000 if told == "more than is looked at" else 1):
            await held.client.xadd(journal, {"event": event, "job": "a", "data": data})
    reply = await held.settle(item(E1, verb, times=times), reply_was_lost=True, proven_ms=alive)
    if told == "delivered":
        assert reply == 1 or reply[0] == DONE or reply[0][0] == DEAD
        assert await held.pending() == []
    else:
        assert reply == [UNKNOWN]
    assert await held.settle(item(E1, verb, times=times), reply_was_lost=True, proven_ms=alive) == [UNKNOWN]


async def test_it_is_held_again_when_memory_is_full(held: Scene) -> None:
    await vanish(held, "consumer")
    await held.fill_memory()
    result = await hold_again(held)
    await held.free_memory()
    assert result == 1


async def test_a_group_that_is_not_there_is_an_error(held: Scene) -> None:
    await held.client.xgroup_destroy("orders", "billing")
    with pytest.raises(Exception, match="NOGROUP"):
        await hold_again(held)
