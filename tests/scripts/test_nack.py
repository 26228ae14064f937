"""What nobody holds: entries that were given back by XNACK (Redis 8.8), by foreign workers or by us.

Readers with CLAIM take them at once, whatever the policy is. What scripts of ours do about them is said here; that they
give back so themselves where the server can is in `test_in_place`.
"""

from typing import Any

import anyio
import pytest

from tests.scripts.scene import Scene, details, entry_id, item, rows
from tests.support.tiers import WITH_NACK
from tests.support.waiting import wait_until
from workers.protocol.keys import NOBODY, RETURNED_CONSUMER
from workers.protocol.keys import WAITING_CONSUMER as WAITING
from workers.protocol.messages import pair_up
from workers.protocol.scripts import load_script

pytestmark = [pytest.mark.anyio, pytest.mark.only_on(*WITH_NACK)]

IN_PLACE, STREAM = "in-place", "stream"
SERVED: dict[str, str | int] = {
    "recovery": "reaper",
    "served_until": 10**14,
    "visibility_ms": 30_000,
    "max_deliveries": 3,
}
BLOCK_MS = 3_000
"""For longer than any answer takes, and the most that is waited where none comes."""


async def nack(scene: Scene, *ids: str, mode: str = "FAIL", times: int | None = None) -> int:
    """Give back as a foreign worker does; returns how many the server says."""
    count = ("RETRYCOUNT", times) if times is not None else ()
    done: int = await scene.client.execute_command("XNACK", "orders", "billing", mode, "IDS", len(ids), *ids, *count)
    return done


async def nacked(scene: Scene, *flat: str | int, times: int = 1, mode: str = "FAIL") -> str:
    """Add an entry that ``w1`` was given and has given back; return its ID."""
    one = await scene.stalled(*flat, times=times)
    assert await nack(scene, one, mode=mode) == 1
    return one


async def claim(scene: Scene, consumer: str = "w9", *more: str | int) -> list[tuple[str, int, int]]:
    """Read with CLAIM: ``(entry ID, idle time in ms, deliveries before)``."""
    reply = await scene.client.execute_command(
        "XREADGROUP", "GROUP", "billing", consumer, "CLAIM", 10**9, *more, "STREAMS", "orders", ">"
    )
    return [(one.decode(), idle, before) for _, entries in reply or () for one, _, idle, before in entries]


async def letters(scene: Scene) -> list[dict[bytes, bytes]]:
    """Return the fields of the dead letters."""
    found: Any = await scene.client.xrange(scene.keys.dead)
    return [dict(pair_up(fields)) for _, fields in found]


# --- what the scripts rely on ---------------------------------------------------------------------------------------


async def test_nobody_holds_it_and_its_count_is_what_was_said(scene: Scene) -> None:
    one, other = await nacked(scene, times=2), await scene.stalled()
    assert await scene.pending() == [(one, NOBODY, 2), (other, "w1", 1)]
    assert (await scene.idle_ms())[one] == -1
    assert await nack(scene, one, times=5) == 1
    assert (await scene.pending())[0] == (one, NOBODY, 5)
    summary: Any = await scene.client.execute_command("XPENDING", "orders", "billing")
    assert (int(summary[0]), [[name, int(count)] for name, count in summary[3]]) == (2, [[b"w1", 1]])
    assert await nack(scene, entry_id(99)) == 0


async def test_a_reader_with_claim_takes_it_first_and_its_idle_time_is_not_that_of_the_future(scene: Scene) -> None:
    old = await scene.stalled()
    await scene.deliver(old, idle_ms=4 * 10**9)
    first = await nacked(scene)
    fresh = await scene.add()
    found = await claim(scene)
    assert [(one, before) for one, _, before in found] == [(first, 1), (old, 1), (fresh, 0)]
    assert found[0][1] >= 10**9  # claiming.py takes what is below 0 for somebody's delivery
    assert await scene.pending() == [(old, "w9", 2), (first, "w9", 2), (fresh, "w9", 1)]


async def test_readers_that_block_are_woken_by_what_a_leader_gives_back(scene: Scene) -> None:
    await scene.agree(policy=IN_PLACE, **SERVED)
    one = await scene.stalled()
    found: list[tuple[str, int, int]] = []

    async def read() -> None:
        found.extend(await claim(scene, "w9", "BLOCK", BLOCK_MS))

    async def reads() -> bool:
        return b"w9" in [consumer["name"] for consumer in await scene.client.xinfo_consumers("orders", "billing")]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await wait_until(reads, "the reader is there")
        assert [row[0] for row in rows(await scene.recover(one, policy=IN_PLACE))] == [1]
    assert [entry for entry, _, _ in found] == [one]


# --- policy in-place ------------------------------------------------------------------------------------------------


async def test_what_a_foreign_worker_gave_back_is_ready_already(scene: Scene) -> None:
    await scene.agree(policy=IN_PLACE, **SERVED)
    ids = [await nacked(scene, times=times) for times in (1, 2)]  # the second: its last delivery is to come
    before = await scene.state()
    assert details(await scene.recover(*ids, policy=IN_PLACE)) == [30_000, 30_000]
    assert await scene.state() == before


async def test_what_has_had_its_deliveries_is_a_dead_letter_that_names_who_had_it(scene: Scene) -> None:
    await scene.agree(policy=IN_PLACE, **SERVED)
    one = await nacked(scene, "n", 1, times=3)
    await scene.client.hset(scene.keys.notes, one, "0,0,,,w1,w2,w3")
    await scene.client.hset(scene.keys.suspects, mapping={one: "stream", entry_id(9): "stream"})
    assert [row[0] for row in rows(await scene.recover(one, policy=IN_PLACE))] == [3]
    [letter] = await letters(scene)
    assert letter[b"reaper.consumers"] == b"w1,w2,w3"
    assert letter[b"reaper.dead.error"] == b"given back by XNACK"
    assert await scene.pending() == []


@pytest.mark.parametrize("policy", [IN_PLACE, STREAM])
async def test_fatal_is_a_dead_letter(scene: Scene, policy: str) -> None:
    await scene.agree(policy=policy, **SERVED)
    one = await nacked(scene, mode="FATAL")
    assert [row[0] for row in rows(await scene.recover(one, policy=policy))] == [3]
    assert len(await letters(scene)) == 1


async def test_a_late_verdict_is_refused_and_one_whose_reply_was_lost_is_unknown(scene: Scene) -> None:
    await scene.agree(policy=IN_PLACE, **SERVED)
    one = await scene.stalled()
    await scene.recover(one, policy=IN_PLACE)
    before = await scene.state()
    assert await scene.settle(item(one, "ack"), policy=IN_PLACE, journal=False) == [0]
    assert await scene.settle(item(one, "ack"), policy=IN_PLACE, journal=False, reply_was_lost=True) == [3]
    assert [int(one) for one in await scene.extend(one)] == [0]
    assert await scene.state() == before


async def test_what_was_returned_or_waits_is_not_nobodys(scene: Scene) -> None:
    await scene.agree(policy=IN_PLACE, **SERVED)
    waiting, taken = await scene.stalled(), await scene.stalled()
    assert await scene.settle(item(waiting, "nack", delay_ms=60_000), policy=IN_PLACE) == [1]
    returned = await load_script("workers.protocol", "return_taken").run(
        scene.client, ["orders", "orders", scene.keys.schedule], ["billing", "w1", taken, 0]
    )
    assert returned == 1
    assert await scene.pending() == [(waiting, WAITING, 1), (taken, RETURNED_CONSUMER, 0)]


# --- other policies -------------------------------------------------------------------------------------------------


async def test_by_another_policy_it_is_copied_at_once_and_nobody_is_suspected(scene: Scene) -> None:
    one, last = await nacked(scene, "n", 1), await nacked(scene, "n", 2, times=2)
    assert [row[0] for row in rows(await scene.recover(one, last))] == [1, 1]
    found = await scene.state()
    assert [(entry[1:3], entry[5:7]) for entry in found["orders"]["entries"]] == [
        (("n", "1"), ("reaper.deliveries", "1")),
        (("n", "2"), ("reaper.deliveries", "2")),
    ]
    assert await scene.pending() == []
    assert scene.keys.schedule not in found
    assert [event[2]["reason"] for event in found[scene.keys.journal]] == ["given_back", "given_back"]


async def test_a_suspect_that_was_given_back_is_out_still(scene: Scene) -> None:
    one = await nacked(scene, "n", 1, times=2)
    await scene.client.hset(scene.keys.suspects, one, "stream,1")
    [row] = rows(await scene.recover(one))
    assert row[0] == 1
    assert list((await scene.client.hgetall(scene.keys.suspects)).values()) == [b"stream,1"]


async def test_workers_that_recover_by_themselves_do_the_same(scene: Scene) -> None:
    await scene.agree(policy=STREAM, recovery="embedded", visibility_ms=30_000, max_deliveries=3)
    one = await nacked(scene, "n", 1, times=2)
    await nacked(scene, "n", 2, times=3)
    reply = await scene.autoclaim()
    assert [result[0] for result in reply[7]] == [1, 3]
    assert reply[8] == []
    assert [letter[b"n"] for letter in await letters(scene)] == [b"2"]
    assert await scene.pending() == []
    assert one not in [entry[0] for entry in (await scene.state())["orders"]["entries"]]


# --- those who look -------------------------------------------------------------------------------------------------


async def test_it_is_nobodys_work_in_flight(scene: Scene) -> None:
    await nacked(scene)
    await scene.stalled()
    keys = scene.keys
    told = await load_script("workers.protocol", "look_at_group").run(
        scene.client,
        [keys.stream, keys.retry, keys.schedule, keys.stream_schedule, keys.suspects, keys.dead, keys.agreement],
        [keys.group],
    )
    assert told[0] == 1


async def test_no_consumer_without_a_name_is_ever_made(scene: Scene) -> None:
    await scene.agree(policy=IN_PLACE, **SERVED)
    ids = [await nacked(scene, times=times) for times in (1, 2, 3)]
    for policy in (IN_PLACE, STREAM):
        await scene.recover(*ids, policy=policy)
        await scene.release(policy=policy)
    names = [one["name"] for one in await scene.client.xinfo_consumers("orders", "billing")]
    assert b"" not in names


async def test_nor_by_workers_that_recover_by_themselves(scene: Scene) -> None:
    await scene.agree(policy=STREAM, recovery="embedded", visibility_ms=30_000, max_deliveries=3)
    for times in (1, 2, 3):
        await nacked(scene, times=times)
    await scene.autoclaim()
    names = [one["name"] for one in await scene.client.xinfo_consumers("orders", "billing")]
    assert b"" not in names
