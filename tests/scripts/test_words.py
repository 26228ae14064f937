"""By what a delivery is judged: what its worker goes by, where that is higher than what the group agrees on by now."""

from typing import Any

import pytest

from tests.scripts.scene import Scene, item
from workers.protocol.calls import Step, clock_word

pytestmark = pytest.mark.anyio

OURS = "w1.0123456789ab"
"""What a worker of ours is called."""
READY, NOT_DUE = 1, 4


async def says(scene: Scene, consumer: str, visibility_ms: int, limit: int = 3, *, for_ms: int = 35_000) -> None:
    """Let a worker have joined with these values."""
    until = await scene.now_ms() + for_ms
    await scene.agree(**{f"member:{consumer}": f"1,{visibility_ms},{limit},{until},"})


async def shortened(scene: Scene, *, for_ms: int = 35_000, **former: int) -> None:
    """Let the group have agreed on lower values a moment ago."""
    await scene.agree(former_until=await scene.now_ms() + for_ms, **former)


async def recovered(scene: Scene, entry_id: str, **values: Any) -> tuple[int, bytes | int]:
    """Return what became of an entry: code and detail."""
    reply = await scene.recover(entry_id, **{"visibility_ms": 4_000, **values})
    assert reply[0] == b"ok"
    return reply[1][0], reply[1][1]


async def test_a_worker_that_goes_by_a_longer_timeout_keeps_its_deliveries(scene: Scene) -> None:
    await says(scene, OURS, 30_000)
    entry_id = await scene.add()
    await scene.deliver(entry_id, consumer=OURS, idle_ms=20_000)
    code, left_ms = await recovered(scene, entry_id)
    assert code == NOT_DUE
    assert 5_000 < int(left_ms) <= 10_000
    await scene.deliver(entry_id, consumer=OURS, idle_ms=30_000)
    assert (await recovered(scene, entry_id))[0] == READY


async def test_it_is_looked_at_again_when_its_word_counts_no_more(scene: Scene) -> None:
    await says(scene, OURS, 3_600_000, for_ms=20_000)
    entry_id = await scene.add()
    await scene.deliver(entry_id, consumer=OURS, idle_ms=20_000)
    code, left_ms = await recovered(scene, entry_id)
    assert code == NOT_DUE
    assert 15_000 < int(left_ms) <= 20_000
    await says(scene, OURS, 3_600_000, for_ms=-1)
    assert (await recovered(scene, entry_id))[0] == READY


async def test_the_groups_longer_timeout_holds_for_everybody(scene: Scene) -> None:
    await says(scene, OURS, 4_000)
    entry_id = await scene.add()
    await scene.deliver(entry_id, consumer=OURS, idle_ms=20_000)
    assert (await recovered(scene, entry_id, visibility_ms=30_000))[0] == NOT_DUE


@pytest.mark.parametrize("consumer", ["plain", OURS])
async def test_who_gave_no_word_is_judged_by_what_was_agreed_on_before_for_a_while(scene: Scene, consumer: str) -> None:
    entry_id = await scene.add()
    await scene.deliver(entry_id, consumer=consumer, idle_ms=20_000)
    await shortened(scene, former_visibility_ms=30_000)
    assert (await recovered(scene, entry_id))[0] == NOT_DUE
    await shortened(scene, former_visibility_ms=30_000, for_ms=-1)
    assert (await recovered(scene, entry_id))[0] == READY


@pytest.mark.parametrize(
    ("consumer", "idle_ms", "code"),
    [("plain", 20_000, READY), (OURS, 20_000, NOT_DUE), (OURS, 3_600_000, READY)],
    ids=["a foreign worker's", "ours", "ours, for an hour"],
)
async def test_the_first_agreement_leaves_our_workers_alone_until_they_have_joined(
    scene: Scene, consumer: str, idle_ms: int, code: int
) -> None:
    entry_id = await scene.add()
    await scene.deliver(entry_id, consumer=consumer, idle_ms=idle_ms)
    await shortened(scene)
    assert (await recovered(scene, entry_id))[0] == code


async def test_who_has_joined_since_is_judged_by_what_it_joined(scene: Scene) -> None:
    await shortened(scene, former_visibility_ms=30_000)
    await says(scene, OURS, 4_000)
    entry_id = await scene.add()
    await scene.deliver(entry_id, consumer=OURS, idle_ms=20_000)
    assert (await recovered(scene, entry_id))[0] == READY


async def test_a_neighbour_that_is_overdue_is_recovered(scene: Scene) -> None:
    await says(scene, OURS, 30_000)
    ids = [await scene.add() for _ in range(4)]
    for entry_id, consumer in zip(ids, [OURS, "gone", OURS, "gone"], strict=True):
        await scene.deliver(entry_id, consumer=consumer, idle_ms=20_000)
    reply = await scene.recover(*ids, visibility_ms=4_000)
    assert [row[0] for row in reply[1:]] == [NOT_DUE, READY, NOT_DUE, READY]


async def mixed(scene: Scene, number: int = 40) -> tuple[list[str], list[str]]:
    """Let one worker hold many, by its word; return all, and which of them are overdue by it."""
    await says(scene, OURS, 30_000)
    ids = [await scene.add("n", n) for n in range(number)]
    overdue = [one for n, one in enumerate(ids) if n % 9 not in (3, 7)]
    for one in ids:
        await scene.deliver(one, consumer=OURS, idle_ms=40_000 if one in overdue else 20_000)
    return ids, overdue


async def test_of_what_one_worker_holds_each_is_judged_by_its_own_idle_time(scene: Scene) -> None:
    ids, overdue = await mixed(scene)
    reply = await scene.recover(*ids, visibility_ms=4_000)
    assert [row[0] for row in reply[1:]] == [READY if one in overdue else NOT_DUE for one in ids]
    assert {one for one, *_ in await scene.pending()} == set(ids) - set(overdue)


async def test_nothing_is_given_up_by_a_limit_that_its_worker_did_not_know(scene: Scene) -> None:
    await says(scene, OURS, 4_000, limit=5)
    ours, other = await scene.doomed(times=2, consumer=OURS), await scene.doomed(times=2, consumer="plain")
    reply = await scene.recover(ours, other, max_deliveries=2)
    assert [row[0] for row in reply[1:]] == [1, 3]
    state = await scene.state()
    assert [entry[2] for entry in state["{orders}:dead:billing"]["entries"]] == ["2"]


async def test_a_nack_counts_against_the_limit_that_the_worker_knew(scene: Scene) -> None:
    await scene.agree(policy="stream", max_deliveries=2)
    await says(scene, OURS, 4_000, limit=3)
    held = {consumer: await scene.stalled(times=2, consumer=consumer) for consumer in (OURS, "plain")}
    for consumer, entry_id in held.items():
        await scene.settle(item(entry_id, "nack", times=2), consumer=consumer)
    state = await scene.state()
    assert [entry[2] for entry in state["{orders}:dead:billing"]["entries"]] == ["2"]


# ---- a step of the clock

HOUR_MS = 3_600_000


async def set_ahead(scene: Scene, ago_ms: int, by_ms: int = HOUR_MS) -> str:
    """Return what who has seen it says of a clock that was set ahead so long ago."""
    return clock_word(10**15, [Step(await scene.now_ms() - ago_ms - by_ms, by_ms)])


@pytest.mark.parametrize("embeds", [False, True])
@pytest.mark.parametrize(
    ("for_ms", "is_left_alone"),
    [
        (60_000, True),  # given since
        (20_000 - HOUR_MS, True),  # given before, and would last
        (-20_000 - HOUR_MS, False),  # would have ended by now
        (-40_000 - HOUR_MS, False),  # had ended when the clock was set
    ],
)
async def test_a_step_of_the_clock_ends_nobodys_word(
    scene: Scene, for_ms: int, is_left_alone: bool, embeds: bool
) -> None:
    """Else a worker is judged by a timeout that it has never heard of, until it has joined again (seed 5100314)."""
    await embedded(scene)
    await says(scene, OURS, 120_000, for_ms=for_ms)
    entry_id = await scene.add()
    await scene.deliver(entry_id, consumer=OURS, idle_ms=20_000)
    clock = await set_ahead(scene, 30_000)
    if embeds:
        await scene.autoclaim(consumer="w2", room=10, not_after_ms=clock)
        taken = [owner for _, owner, _ in await scene.pending()] == ["w2"]
    else:
        taken = (await recovered(scene, entry_id, not_after_ms=clock))[0] == READY
    assert taken != is_left_alone


async def test_what_was_given_since_the_clock_was_set_ends_when_it_says(scene: Scene) -> None:
    await says(scene, OURS, 3_600_000, for_ms=-1_000)
    entry_id = await scene.add()
    await scene.deliver(entry_id, consumer=OURS, idle_ms=20_000)
    assert (await recovered(scene, entry_id, not_after_ms=await set_ahead(scene, 1_800_000)))[0] == READY


@pytest.mark.parametrize(("for_ms", "code"), [(5_000 - HOUR_MS, NOT_DUE), (-5_000 - HOUR_MS, READY)])
async def test_nor_does_it_end_what_was_agreed_on_before(scene: Scene, for_ms: int, code: int) -> None:
    await shortened(scene, former_visibility_ms=120_000, for_ms=for_ms)
    entry_id = await scene.add()
    await scene.deliver(entry_id, consumer=OURS, idle_ms=20_000)
    assert (await recovered(scene, entry_id, not_after_ms=await set_ahead(scene, 15_000)))[0] == code


@pytest.mark.parametrize(("first", "last", "code"), [(0, 2, NOT_DUE), (0, 1, READY), (1, 2, READY)])
async def test_a_word_outlasts_each_of_several_steps_and_a_short_one_as_well(
    scene: Scene, first: int, last: int, code: int
) -> None:
    await says(scene, OURS, 120_000, for_ms=10_000 - HOUR_MS - 40_000)
    entry_id = await scene.add()
    await scene.deliver(entry_id, consumer=OURS, idle_ms=20_000)
    now = await scene.now_ms()
    steps = [Step(now - HOUR_MS - 60_000, HOUR_MS), Step(now - 50_000, 40_000)][first:last]
    assert (await recovered(scene, entry_id, not_after_ms=clock_word(10**15, steps)))[0] == code


# ---- embedded


async def embedded(scene: Scene, *, limit: int = 3) -> None:
    await scene.agree(policy="stream", visibility_ms=4_000, max_deliveries=limit, recovery="embedded")


async def test_an_embedded_worker_claims_nothing_of_one_that_goes_by_a_longer_timeout(scene: Scene) -> None:
    await embedded(scene)
    await says(scene, OURS, 30_000)
    ids = [await scene.add() for _ in range(4)]
    for entry_id, consumer in zip(ids, [OURS, "gone", OURS, "gone"], strict=True):
        await scene.deliver(entry_id, consumer=consumer, idle_ms=20_000)
    reply = await scene.autoclaim(consumer="w2", room=10)
    assert [owner for _, owner, _ in await scene.pending()] == [OURS, "w2", OURS, "w2"]
    assert 5_000 < reply[3] <= 10_000, "when the next one is due"


async def test_an_embedded_worker_judges_each_that_one_worker_holds_by_its_own_idle_time(scene: Scene) -> None:
    await embedded(scene)
    ids, overdue = await mixed(scene)
    await scene.autoclaim(consumer="w2", room=100)
    assert {one: owner for one, owner, _ in await scene.pending()} == {
        one: "w2" if one in overdue else OURS for one in ids
    }


async def test_an_embedded_worker_gives_nothing_up_by_a_limit_that_its_worker_did_not_know(scene: Scene) -> None:
    await embedded(scene, limit=2)
    await says(scene, OURS, 4_000, limit=5)
    for consumer in (OURS, "gone"):
        await scene.doomed(times=2, consumer=consumer)
    await scene.autoclaim(consumer="w2", room=10)
    state = await scene.state()
    assert [entry[2] for entry in state["{orders}:dead:billing"]["entries"]] == ["2"]
    assert [count for _, owner, count in await scene.pending() if owner == "w2"] == [3]


async def test_adoption_goes_by_the_limit_that_the_earlier_process_knew(scene: Scene) -> None:
    await scene.agree(policy="stream", max_deliveries=2)
    await says(scene, OURS, 4_000, limit=5)
    entry_id = await scene.stalled(times=2, consumer=OURS)
    reply = await scene.adopt(from_consumer=OURS)
    assert [row[:2] for row in reply[4]] == [[entry_id.encode(), 3]]
