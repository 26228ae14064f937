"""What a read has taken from the living, as the server's clock was set back, is theirs again, and nobody else's."""

from typing import Any

import pytest

from tests.scripts.scene import LONG_IDLE_MS, Scene, Word, item, rows
from workers.protocol.keys import RETURNED_CONSUMER as RETURNED
from workers.protocol.keys import WAITING_CONSUMER as WAITING
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

REFUSED, DONE, VANISHED = 0, 1, 3


@pytest.fixture(autouse=True)
async def agreed(scene: Scene) -> None:
    """The group gives back in place."""
    await scene.agree(policy="in-place", recovery="reaper", served_until=10**14, visibility_ms=30_000, max_deliveries=3)


async def return_taken(scene: Scene, *words: Word, consumer: str = "thief") -> int:
    """Run ``return_taken``: entry ID and count, in turn."""
    reply: Any = await load_script("workers.protocol", "return_taken").run(
        scene.client, ["orders", "orders", scene.keys.schedule], ["billing", consumer, *words]
    )
    return int(reply)


async def taken(scene: Scene, *, times: int = 1) -> str:
    """Let a worker hold an entry in its ``times``-th delivery, and a read take it from there."""
    one = await scene.stalled(times=times)
    await scene.client.execute_command("XCLAIM", "orders", "billing", "thief", 0, one)
    return one


async def extend(scene: Scene, one: str, times: Word, consumer: str = "w1") -> int:
    words: list[Word] = ["billing", consumer, one, times]
    script = load_script("workers.protocol", "extend_visibility")
    keys = ["orders", scene.keys.journal, scene.keys.agreement, "orders"]
    reply: Any = await script.run(scene.client, keys, words)
    return int(reply[0])


async def hold_again(scene: Scene, one: str, times: Word, consumer: str = "w1") -> int:
    reply: Any = await load_script("workers.protocol", "hold_again").run(
        scene.client, ["orders", "orders", scene.keys.agreement], ["billing", consumer, 0, 1_000, one, one, times]
    )
    return int(reply[0])


@pytest.mark.parametrize("times", [1, 2])
async def test_whoever_had_it_has_it_again_with_the_next_extension(scene: Scene, times: int) -> None:
    one = await taken(scene, times=times)
    assert await return_taken(scene, one, times) == 1
    assert await scene.pending() == [(one, RETURNED, times)]
    assert await extend(scene, one, times) == VANISHED
    assert await hold_again(scene, one, times) == 1
    assert await scene.pending() == [(one, "w1", times)]
    assert await extend(scene, one, times) == 1


@pytest.mark.parametrize("reply_was_lost", [False, True])
async def test_whoever_had_it_settles_it(scene: Scene, reply_was_lost: bool) -> None:
    one = await taken(scene)
    assert await return_taken(scene, one, 1) == 1
    assert await scene.settle(item(one, "ack"), reply_was_lost=reply_was_lost) == 1
    assert await scene.pending() == []


async def test_another_delivery_than_the_one_that_was_taken_has_nothing_of_it(scene: Scene) -> None:
    one = await taken(scene, times=2)
    await return_taken(scene, one, 2)
    assert await extend(scene, one, 1, "w0") == REFUSED
    assert await hold_again(scene, one, 1, "w0") == 0
    assert await extend(scene, one, 3, "thief") == REFUSED
    assert await scene.pending() == [(one, RETURNED, 2)]


async def test_what_is_not_ours_any_more_or_was_delivered_anew_is_left_alone(scene: Scene) -> None:
    mine, others, anew = await taken(scene), await scene.stalled(consumer="w2"), await taken(scene)
    await scene.client.execute_command("XCLAIM", "orders", "billing", "thief", 0, anew)
    before = await scene.pending()
    assert await return_taken(scene, others, 1, anew, 1, "1-1", 1) == 0
    assert await scene.pending() == before
    assert await return_taken(scene, mine, 1) == 1


async def test_after_a_lost_reply_all_that_was_delivered_before_is_given_back(scene: Scene) -> None:
    """The reply would have said which of it lives (seed 17654)."""
    mine, anew = await taken(scene, times=2), await scene.stalled(consumer="thief")
    waits = await taken(scene)
    await scene.client.zadd(scene.keys.schedule, {f"stream {waits}": 1})
    in_hand = await taken(scene)
    reply = await scene.adopt((in_hand, 2), case="claimed", from_consumer="thief", consumer="thief")
    assert (reply[0], [row[:2] for row in reply[4]]) == (b"", [[anew.encode(), 1]])
    assert await scene.pending() == [
        (mine, RETURNED, 2), (anew, "thief", 1), (waits, WAITING, 1), (in_hand, "thief", 2),
    ]  # fmt: skip
    assert await hold_again(scene, mine, 2) == 1


async def test_what_waited_in_the_schedule_waits_again(scene: Scene) -> None:
    one = await scene.stalled(times=2)
    assert rows(await scene.recover(one, policy="in-place"))[0][0] == 2, "a suspect"
    waiting = await scene.state()
    await scene.client.execute_command("XCLAIM", "orders", "billing", "thief", 0, one)
    assert await return_taken(scene, one, 2) == 1
    assert await scene.pending() == [(one, WAITING, 2)]
    assert {**await scene.state(), "orders": waiting["orders"]} == waiting


# ---- before it is given back

TO_BE_ASKED_AGAIN, TAKEN = 5, 5
HELD_TO_BE_ASKED_AGAIN = 2


async def says(scene: Scene, one: str, *, proven_ago_ms: int, times: int = 1) -> tuple[Any, int, int]:
    """Return what its worker hears that settles it, extends it, and would hold it again."""
    count = f"{times},{await scene.now_ms() - proven_ago_ms}"
    settled = await scene.settle(item(one, "ack", times=count))
    return settled, await extend(scene, one, count), await hold_again(scene, one, count)


@pytest.mark.parametrize("thief", ["thief", "w1"], ids=["another reader", "its own next read"])
@pytest.mark.parametrize("proven_ago_ms", [100, -60_000], ids=["lately", "before the clock was set back"])
async def test_until_it_is_given_back_nothing_is_told_to_whoever_lives_and_has_it(
    scene: Scene, proven_ago_ms: int, thief: str
) -> None:
    """Else what it has done is refused, and what it runs taken from it: jobs of one delivery die (seed 5301966)."""
    await scene.agree(**{"member:w1": "1,30000,3,9999999999999,"})
    one = await scene.stalled()
    await scene.client.execute_command("XCLAIM", "orders", "billing", thief, 0, one)
    before = await scene.pending()
    heard = await says(scene, one, proven_ago_ms=proven_ago_ms)
    assert heard == ([TO_BE_ASKED_AGAIN], TAKEN, HELD_TO_BE_ASKED_AGAIN)
    assert await scene.pending() == before == [(one, thief, 2)]
    assert await return_taken(scene, one, 1, consumer=thief) == 1
    assert await scene.settle(item(one, "ack")) == 1
    assert await scene.pending() == []


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("it was silent for too long", {"proven_ago_ms": 25_000}),
        ("it was delivered twice since", {"times": 0}),
        ("copies are made there", {"policy": "stream"}),
        ("it has given no word", {"word": None}),
        ("it has begun anew since", {"word": "1,30000,3,9999999999999,{now},"}),
        ("it was laid aside", {"thief": "ready-by-reaper"}),
    ],
)
async def test_what_was_taken_by_right_is_refused(scene: Scene, what: str, changed: dict[str, Any]) -> None:
    word = changed.get("word", "1,30000,3,9999999999999,")
    if word:
        await scene.agree(**{"member:w1": word.format(now=await scene.now_ms())})
    await scene.agree(policy=changed.get("policy", "in-place"))
    one = await scene.stalled()
    await scene.client.execute_command("XCLAIM", "orders", "billing", changed.get("thief", "thief"), 0, one)
    heard = await says(scene, one, proven_ago_ms=changed.get("proven_ago_ms", 100), times=changed.get("times", 1))
    assert heard == ([REFUSED], REFUSED, 0), what


async def test_where_the_reply_to_a_settlement_was_lost_it_may_have_been_given_back_and_taken_by_right(
    scene: Scene,
) -> None:
    await scene.agree(**{"member:w1": "1,30000,3,9999999999999,"})
    one = await taken(scene)
    count = f"1,{await scene.now_ms() - 100}"
    assert await scene.settle(item(one, "nack", times=count), reply_was_lost=True) == [3]


async def given_back_by_a_stranger(scene: Scene) -> str:
    """Let a job wait in the schedule, and a reader that is not ours give it back, as it is told to, long ago."""
    one = await scene.stalled(times=2)
    await scene.recover(one, policy="in-place")
    await scene.deliver(one, consumer=RETURNED, times=2)
    return one


@pytest.mark.parametrize("mode", ["reaper", "embedded"])
async def test_what_a_stranger_gives_back_waits_again_where_it_waited_in_the_schedule(scene: Scene, mode: str) -> None:
    """He cannot know whose it was (seed 4001256)."""
    one = await given_back_by_a_stranger(scene)
    if mode == "reaper":
        assert rows(await scene.recover(one, policy="in-place")) == [(4, RETURNED, "", 2)]
    else:
        await scene.agree(recovery="embedded")
        assert (await scene.autoclaim(consumer="w9"))[7:9] == [[], []]
    assert await scene.pending() == [(one, WAITING, 2)]
    assert (await scene.idle_ms())[one] < LONG_IDLE_MS


async def test_what_a_stranger_gives_back_is_ready_when_it_is_due(scene: Scene) -> None:
    one = await taken(scene)
    await scene.client.zadd(scene.keys.schedule, {f"stream {one}": 1})
    await scene.deliver(one, consumer=RETURNED, times=1)
    assert (await scene.move_due(policy="in-place"))[:2] == [b"ok", 1]
    assert await scene.pending() == [(one, scene.ready_owner, 1)]


async def test_where_nobody_has_it_any_more_it_falls_due(scene: Scene) -> None:
    one = await taken(scene)
    await return_taken(scene, one, 1)
    await scene.client.execute_command(
        "XCLAIM", "orders", "billing", RETURNED, 0, one, "IDLE", LONG_IDLE_MS, "RETRYCOUNT", 1, "JUSTID"
    )
    assert rows(await scene.recover(one, policy="in-place")) == [(1, RETURNED, one, 1)]


async def test_a_lost_reply_changes_nothing(scene: Scene) -> None:
    one = await taken(scene)
    await return_taken(scene, one, 1)
    before = await scene.pending()
    assert await return_taken(scene, one, 1) == 0
    assert await scene.pending() == before


async def test_what_lost_its_payload_stays_where_it_is(scene: Scene) -> None:
    one = await taken(scene)
    await scene.client.xdel("orders", one)
    assert await return_taken(scene, one, 1) == 0
    assert await scene.pending() == [(one, "thief", 2)]


async def test_with_full_memory_it_works(scene: Scene) -> None:
    one = await taken(scene)
    await scene.fill_memory()
    given_back = await return_taken(scene, one, 1)
    await scene.free_memory()
    assert given_back == 1
