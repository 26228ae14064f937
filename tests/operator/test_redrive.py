"""Redriving: one script per batch, whole state before and after, and nothing redriven twice."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from reaper.operations.dead_letters import PAGE, Selection, select
from reaper.operations.ready_again import ReadyAgain, Result
from tests.conftest import StartProxy
from tests.operator.dead import give_up, give_up_many, redriven_often
from tests.scripts.scene import HOLDER, TOO_MANY, Scene, entry_id
from tests.support.dump import show_journal
from tests.support.proxy import runs
from tests.support.servers import RedisServer
from workers.protocol.connection import commands_client
from workers.protocol.errors import NotPossibleError
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio


async def _redrive(scene: Scene, *ids: str, client: Redis | None = None, **how: Any) -> list[Result]:
    limit, dry_run = how.pop("journal_limit", 1_000), how.pop("dry_run", False)
    ready_again = ReadyAgain(client or scene.client, scene.keys, journal_limit=limit, dry_run=dry_run)
    return [result async for result in ready_again.redrive(ids, **how)]


def _outcomes(results: Sequence[Result]) -> list[str]:
    return [result.outcome.name for result in results]


async def test_a_redriven_job_is_the_next_generation_with_its_fields_byte_for_byte(scene: Scene) -> None:
    dead = await give_up(scene)
    await scene.client.delete(scene.keys.journal)
    results = await _redrive(scene, dead, journal_limit=0)
    user = ("b", "\xff\x00\r\n\xc3(", "a", "1", "b", "again", "traceparent", "00-11-22-01")
    ours = (
        *("reaper.job", entry_id(1), "reaper.deliveries", "0", "reaper.generation", "1"),
        *("reaper.first_ms", entry_id(1).split("-")[0], "reaper.consumers", "w1", "reaper.copies", "1"),
    )
    assert _outcomes(results) == ["DONE"]
    assert await scene.state() == {
        "orders": {"entries": [("new-1", *user, *ours)], "billing": []},
        "{orders}:dead:billing": {"entries": []},
        "{orders}:lease:billing": HOLDER,
    }


async def test_the_journal_tells_of_a_redrive(scene: Scene) -> None:
    dead = await give_up(scene)
    (result,) = await _redrive(scene, dead)
    event, job, data = (await show_journal(scene.client, scene.keys.journal))[-1]
    assert (event, job) == ("redriven", entry_id(1))
    assert data == {
        "group": "billing",
        "mode": "operator",
        "entry": dead,
        "generation": 1,
        "deliveries": 3,
        "enqueued_ms": int(entry_id(1).split("-")[0]),
        "reason": "max_deliveries",
        "new_entry": result.detail,
    }


async def test_with_policy_retry_stream_jobs_go_to_the_groups_retry_stream(scene: Scene) -> None:
    dead = await give_up(scene, "n", 1)
    await scene.set_settings(policy="retry-stream")
    await _redrive(scene, dead)
    state = await scene.state()
    assert [entry[1:3] for entry in state[scene.keys.retry]["entries"]] == [("n", "1")]
    assert state["orders"]["entries"] == []


async def test_with_several_groups_the_others_see_no_redriven_job(scene: Scene) -> None:
    dead = await give_up(scene, "n", 1)
    await scene.client.xgroup_create("orders", "audit", "$")
    await _redrive(scene, dead)
    assert (await scene.client.xlen("orders"), await scene.client.xlen(scene.keys.retry)) == (0, 1)


async def test_without_the_group_nothing_is_redriven(scene: Scene) -> None:
    dead = await give_up(scene)
    await scene.client.xgroup_destroy("orders", "billing")
    before = await scene.state()
    with pytest.raises(NotPossibleError, match="group 'orders/billing' does not exist"):
        await _redrive(scene, dead)
    assert await scene.state() == before


async def test_one_letter_that_cannot_be_copied_does_not_stop_the_others(scene: Scene) -> None:
    good = await give_up(scene)
    words = (*TOO_MANY, "reaper.job", "huge")
    huge = (await scene.client.execute_command("XADD", scene.keys.dead, "*", *words)).decode()
    results = await _redrive(scene, huge, good)
    assert [(result.outcome.name, result.job) for result in results] == [
        ("UNDELIVERABLE", "huge"),
        ("DONE", entry_id(1)),
    ]
    assert results[0].detail == "too many fields"
    assert await scene.client.xlen(scene.keys.dead) == 1


async def test_a_broken_journal_stops_no_redrive(scene: Scene) -> None:
    dead = await give_up(scene)
    await scene.client.delete(scene.keys.journal)
    await scene.client.set(scene.keys.journal, "not a stream")
    assert _outcomes(await _redrive(scene, dead)) == ["DONE"]


async def test_dead_letters_can_be_redriven_when_memory_is_full(scene: Scene) -> None:
    dead = await give_up(scene)
    await scene.fill_memory()
    assert _outcomes(await _redrive(scene, dead)) == ["DONE"]
    assert await scene.client.xlen(scene.keys.dead) == 0


async def test_large_letters_are_put_off_to_further_calls_and_all_arrive(scene: Scene) -> None:
    letters = [await give_up(scene, "blob", b"x" * 300_000) for _ in range(5)]
    calls_before = await _script_calls(scene.client)
    results = await _redrive(scene, *letters)
    calls = await _script_calls(scene.client) - calls_before
    assert _outcomes(results) == ["DONE"] * 5
    assert [result.id for result in results] == letters
    assert calls >= 3, "512 KiB a call"


async def _script_calls(client: Redis) -> int:
    stats = await client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "eval"))


async def test_a_lost_reply_redrives_nothing_twice(scene: Scene, server: RedisServer, proxy: StartProxy) -> None:
    letters = await give_up_many(scene, 3)
    through = await proxy(server)
    dropped = through.drop_reply(runs(load_script("reaper", "ready_again")), nth=2)  # 1 = NOSCRIPT
    client = commands_client(through.url, timeout_s=0.3)
    try:
        results = await _redrive(scene, *letters, client=client)
    finally:
        await client.aclose()
    assert dropped.happened
    assert _outcomes(results) == ["UNKNOWN"] * 3
    jobs = Counter(entry[1:3] for entry in (await scene.state())["orders"]["entries"])
    assert jobs == {("n", str(number)): 1 for number in range(3)}, "one copy of each"


async def test_a_rate_spreads_the_redrive_over_time(scene: Scene) -> None:
    letters = await give_up_many(scene, 6)
    started = anyio.current_time()
    await _redrive(scene, *letters, rate=20)
    assert anyio.current_time() - started >= 4 / 20, "the third batch of two waits until 4 / rate"


async def test_a_selection_reads_each_letter_once_and_ends_with_what_was_there_when_it_began(scene: Scene) -> None:
    letters = [await redriven_often(scene, 1) for _ in range(2 * PAGE + 1)]
    seen = []
    async for letter in select(scene.client, scene.keys, Selection()):
        seen.append(letter.id)
        await redriven_often(scene, 2)  # a job that dies again while the others are redriven
    assert seen == letters
