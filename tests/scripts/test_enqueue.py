"""enqueue.lua: a job is enqueued once, however often its producer has to say so, or not at all."""

from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from tests.scripts.scene import BINARY, HOLDER, Scene, Word, shown
from tests.support.patience import PATIENCE_S, scaled

pytestmark = pytest.mark.anyio

PAYLOAD: tuple[Word, ...] = ("n", 1, "n", 2, BINARY, BINARY)
GUARDS = "{orders}:enqueued"


async def jobs(scene: Scene) -> list[str]:
    """Return the IDs of the jobs in the stream and in its schedule."""
    state = await scene.state()
    return [entry[-1] for entry in state["orders"]["entries"]] + [row[2] for row in state.get("{orders}:scheduled", [])]


async def test_a_job_becomes_an_entry_with_its_id_behind_its_own_fields(scene: Scene) -> None:
    assert await scene.enqueue(("mail-1", 0, *PAYLOAD), call="") == [1]
    assert await scene.state() == {
        "orders": {"entries": [("new-1", *(shown(word) for word in PAYLOAD), "reaper.job", "mail-1")], "billing": []},
        "{orders}:enqueued": {"j:mail-1": "now"},
        "{orders}:lease:billing": HOLDER,
    }


async def test_a_delayed_job_waits_in_the_streams_schedule(scene: Scene) -> None:
    await scene.enqueue(("mail-1", 60_000, *PAYLOAD), call="")
    state = await scene.state()
    assert state["orders"]["entries"] == []
    assert state["{orders}:scheduled"] == [
        ("now", "enqueue", "mail-1", 0, 0, "now", "", "", tuple(shown(word) for word in PAYLOAD))
    ]


@pytest.mark.parametrize("first", [0, 60_000])
@pytest.mark.parametrize("second", [0, 60_000])
async def test_an_id_given_twice_is_one_job_the_first(scene: Scene, first: int, second: int) -> None:
    assert await scene.enqueue(("mail-1", first, "n", 1), call="") == [1]
    assert await scene.enqueue(("mail-1", second, "n", 2), call="") == [0]
    assert await jobs(scene) == ["mail-1"]
    assert await scene.enqueue(("a", 0), ("b", 0), ("a", 60_000)) == [1, 1, 0], "in one call"


async def test_an_id_is_remembered_from_when_its_job_is_ready(scene: Scene, client: Redis) -> None:
    now = await scene.now_ms()
    await scene.enqueue(("now", 0), ("later", 60_000), call="", job_ms=600_000)
    rows: Any = await client.zrange(GUARDS, 0, -1, withscores=True)
    until = dict(rows)
    assert until[b"j:now"] - now == pytest.approx(600_000, abs=5_000)
    assert until[b"j:later"] - until[b"j:now"] == 60_000


async def test_an_id_whose_window_is_over_may_be_used_again(scene: Scene, client: Redis) -> None:
    await scene.enqueue(("mail-1", 0), call="")
    await client.zadd(GUARDS, {"j:mail-1": await scene.now_ms() - 1})
    assert await scene.enqueue(("mail-1", 0), call="") == [1]


@pytest.mark.parametrize("delay", [0, 60_000])
async def test_a_call_that_is_sent_again_enqueues_nothing_and_answers_as_before(scene: Scene, delay: int) -> None:
    await scene.enqueue(("known", 0), call="")
    sent = [("", delay, "n", 1), ("known", 0), ("", delay, "n", 2), ("chosen", 0)]
    assert await scene.enqueue(*sent, call="c1") == [1, 0, 1, 1]
    before = await scene.state()
    assert await scene.enqueue(*sent, call="c1") == [1, 0, 1, 1]
    assert await scene.state() == before


async def test_a_call_and_a_job_of_the_same_name_are_two_things(scene: Scene) -> None:
    await scene.enqueue(("", 0), call="x")
    assert await scene.enqueue(("x", 0), call="") == [1]


async def test_without_memory_nothing_is_enqueued_and_nothing_remembered(scene: Scene) -> None:
    before = await scene.state()
    for delay in (0, 60_000):
        await scene.fill_memory()
        with pytest.raises(ResponseError, match=r"(?i)maxmemory|oom"):
            await scene.enqueue(("a", delay), ("b", 0))
        await scene.free_memory()
        assert await scene.state() == before


@pytest.mark.parametrize("key", ["orders", "{orders}:scheduled", GUARDS])
async def test_a_key_that_holds_something_else_fails_the_whole_call(client: Redis, key: str) -> None:
    await client.set(key, "foreign")
    scene = Scene(client)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await scene.enqueue(("a", 0), ("b", 60_000))
    assert await scene.state() == {key: "foreign"}


async def test_past_ids_are_forgotten_faster_than_they_come(scene: Scene, client: Redis) -> None:
    await client.zadd(GUARDS, {f"j:old-{n}": n for n in range(100)})
    for n in range(10):
        await scene.enqueue((f"new-{n}", 0), call="")
    assert await client.zcard(GUARDS) == 10


async def test_the_memory_of_ids_goes_with_its_last_one(scene: Scene, client: Redis) -> None:
    await scene.enqueue(("long", 0), call="", job_ms=600_000)
    await scene.enqueue(("short", 0), call="", job_ms=60_000)
    assert await client.pttl(GUARDS) == pytest.approx(600_000, abs=5_000)


async def heard(client: Redis, scene: Scene, *delays: int) -> list[int]:
    """Enqueue jobs with these delays; return which of them were worth a notice (by their delay)."""
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("{orders}:scheduled")
        start = await scene.now_ms()
        for number, delay in enumerate(delays):
            await scene.enqueue((f"job-{number}", delay), call="")
        await client.publish("{orders}:scheduled", "end")
        due: list[int] = []
        while True:
            message: Any = await pubsub.get_message(ignore_subscribe_messages=True, timeout=scaled(PATIENCE_S))
            if message and message["data"] == b"end":
                return due
            if message:
                due.append(round((int(message["data"]) - start) / 1_000) * 1_000)


async def test_a_notice_says_what_is_due_earlier_than_all_before(scene: Scene, client: Redis) -> None:
    assert await heard(client, scene, 60_000, 90_000, 30_000, 0, 40_000, 10_000) == [60_000, 30_000, 10_000]
