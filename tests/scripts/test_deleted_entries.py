"""An entry that somebody deletes together with its pending reference: only the worker that has the job can run it.

XDELEX and XACKDEL (Redis 8.2) and trimming with DELREF do that in one command; XACK and XDEL do it on every server.
"""

from typing import Any

import pytest

from tests.scripts.scene import Scene, Word, entry_id, item
from tests.scripts.test_hold_again import WORD
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

E1, E2 = entry_id(1), entry_id(2)
REFUSED, UNKNOWN, TOO_LATE, LOST = 0, 3, 5, 6
PAYLOAD_GONE, VANISHED, EXTENDED_TOO_LATE = 2, 3, 4
NOT_OURS, DELETED = 0, 3
V_MS = 30_000


@pytest.fixture
async def held(scene: Scene) -> Scene:
    """A worker runs the first of two entries, and the second one is pending as well."""
    await scene.agree(policy="stream", max_deliveries=3, visibility_ms=V_MS, **WORD)
    await scene.stalled()
    await scene.stalled()
    return scene


async def delete(scene: Scene, *ids: str, source: str = "orders") -> None:
    await scene.client.xack(source, "billing", *ids)
    await scene.client.xdel(source, *ids)


async def proven(scene: Scene, ago_ms: int = 100, more: str = "") -> str:
    return f"1,{await scene.now_ms() - ago_ms},{await scene.now_ms() + 5_000}{more}"


async def extend(scene: Scene, times: str, source: str = "orders") -> int:
    words: list[Word] = ["billing", "w1", E1, times]
    keys = [source, scene.keys.journal, scene.keys.agreement, "orders"]
    reply: Any = await load_script("workers.protocol", "extend_visibility").run(scene.client, keys, words)
    return int(reply[0])


async def hold_again(scene: Scene, times: str, source: str = "orders") -> int:
    keys = [source, "orders", scene.keys.agreement, scene.keys.suspects, scene.keys.notes, scene.keys.journal]
    words: list[Word] = ["billing", "w1", 1, 1_000, E1, "job-1", times]
    reply: Any = await load_script("workers.protocol", "hold_again").run(scene.client, keys, words)
    return int(reply[0])


async def losses(scene: Scene) -> tuple[int, list[Any]]:
    """Return how many losses status shows, and the events about them."""
    counted = await scene.client.hget(scene.keys.agreement, "lost_payload")
    journal = (await scene.state()).get("{orders}:journal", [])
    return int(counted or 0), [event for event in journal if event[0] == "lost_payload"]


async def test_it_is_reported_once_and_stays_the_workers(held: Scene) -> None:
    await delete(held, E1)
    assert await extend(held, await proven(held)) == VANISHED
    assert await losses(held) == (0, []), "the worker may have settled it by now: its event loop decides"
    assert await hold_again(held, await proven(held)) == DELETED
    assert await extend(held, await proven(held, more=",lost")) == PAYLOAD_GONE
    number, [lost] = await losses(held)
    assert (number, lost[1], lost[2]["entry"], lost[2]["consumer"]) == (1, "job-1", E1, "w1")
    assert await held.pending() == [(E2, "w1", 1)]


async def test_it_is_reported_in_a_retry_stream_too(held: Scene) -> None:
    await held.client.xgroup_create(held.keys.retry, "billing", "0", mkstream=True)
    await held.add(stream=held.keys.retry, at=E1)
    await held.deliver(E1, stream=held.keys.retry)
    await delete(held, E1, source=held.keys.retry)
    assert await extend(held, await proven(held), held.keys.retry) == VANISHED
    assert await hold_again(held, await proven(held), held.keys.retry) == DELETED


@pytest.mark.parametrize("ago_ms", [V_MS * 2 // 3 + 1_000, -10_000])
async def test_what_may_have_been_recovered_by_a_copy_is_refused(held: Scene, ago_ms: int) -> None:
    """A recovery leaves the same behind. It waits until the delivery has not been proven for a visibility timeout."""
    await delete(held, E1)
    times = await proven(held, ago_ms)
    assert (await extend(held, times), await hold_again(held, times)) == (REFUSED, NOT_OURS)
    since_ms = times.partition(",")[2]
    assert await held.settle(item(E1, "ack"), proven_ms=since_ms) == [REFUSED]
    assert await losses(held) == (0, [])


async def test_a_worker_that_gives_no_word_is_refused(held: Scene) -> None:
    """A later process of its name has taken over, and settled the job."""
    await held.client.hdel(held.keys.agreement, "member:w1")
    await delete(held, E1)
    assert await extend(held, await proven(held)) == REFUSED


async def test_a_call_that_comes_too_late_says_nothing(held: Scene) -> None:
    await delete(held, E1)
    late = f"1,{await held.now_ms() - 100},{await held.now_ms() - 1}"
    assert await extend(held, late) == EXTENDED_TOO_LATE
    assert await held.settle(item(E1, "nack"), proven_ms=late.partition(",")[2]) == [TOO_LATE]


async def test_a_job_that_succeeds_is_done_beside_others(held: Scene) -> None:
    await delete(held, E1)
    since_ms = (await proven(held)).partition(",")[2]
    assert await held.settle(item(E1, "ack"), item(E2, "ack"), proven_ms=since_ms) == 2
    assert await held.pending() == []
    assert await losses(held) == (0, [])


@pytest.mark.parametrize("verb", ["nack", "retry", "hand_back", "reject"])
@pytest.mark.parametrize("is_known", [False, True])
async def test_a_job_that_does_not_succeed_is_lost_and_reported_once(held: Scene, verb: str, is_known: bool) -> None:
    await delete(held, E1)
    since_ms = (await proven(held, more=",lost" if is_known else "")).partition(",")[2]
    assert await held.settle(item(E1, verb), item(E1, verb), proven_ms=since_ms) == [LOST, REFUSED]
    number, events = await losses(held)
    assert (number, len(events)) == ((0, 0) if is_known else (1, 1))
    assert await held.client.xlen("orders") == 1, "nothing is made ready"


@pytest.mark.parametrize("verb", ["ack", "nack"])
async def test_after_a_lost_reply_it_is_not_known_who_deleted_it(held: Scene, verb: str) -> None:
    await delete(held, E1)
    since_ms = (await proven(held)).partition(",")[2]
    assert await held.settle(item(E1, verb), proven_ms=since_ms, reply_was_lost=True) == [UNKNOWN]
    assert await losses(held) == (0, [])


async def test_what_another_consumer_claimed_is_refused_although_its_payload_is_gone(held: Scene) -> None:
    await held.deliver(E1, consumer="w2", times=2)
    await held.client.xdel("orders", E1)
    assert await extend(held, await proven(held)) == REFUSED
