"""release_suspects.lua and the suspects' part of recover_entries.lua: who may be guilty runs alone."""

from typing import Any

import pytest

from tests.scripts.scene import FENCE, Scene, entry_id, item, ready, rows
from tests.support.dump import BASE_MS

pytestmark = pytest.mark.anyio

SUSPECTED, DEAD, HELD = 2, 3, 6
E1, E2 = entry_id(1), entry_id(2)


async def park(scene: Scene, count: int) -> list[str]:
    """Park ``count`` suspects; return their jobs in the order of parking."""
    ids = [await scene.stalled(times=2) for _ in range(count)]
    for one in ids:
        assert [row[0] for row in rows(await scene.recover(one, journal=False))] == [SUSPECTED]
    return ids


async def release(scene: Scene, **options: Any) -> tuple[int, int, int, list[tuple[str, str]]]:
    """Return parked, out, settled since the last call, and (job, new entry) of those released."""
    ok, parked, out, settled, *released = await scene.release(**options)
    assert ok == b"ok"
    return parked, out, settled, [(job.decode(), one.decode()) for job, one in released]


async def read(scene: Scene, consumer: str = "w1", count: int = 100, stream: str = "orders") -> list[str]:
    """Read what is ready, as a plain worker does; return the entries' IDs."""
    reply: Any = await scene.client.xreadgroup("billing", consumer, {stream: ">"}, count=count)
    return [one.decode() for _, entries in reply or () for one, _ in entries]


async def stall(scene: Scene, *ids: str, consumer: str = "w1") -> None:
    """Let deliveries be overdue."""
    await scene.deliver(*ids, consumer=consumer, times=1)


async def test_a_suspect_becomes_ready_whole(scene: Scene) -> None:
    payload = ("n", "1", "n", "2", b"\xff\x00", b"\r\n")
    await scene.stalled(*payload, "reaper.generation", 4, times=2)
    await scene.recover(E1, journal=False)
    parked, out, settled, released = await release(scene)
    assert (parked, out, settled, [job for job, _ in released]) == (0, 1, 0, [E1])
    assert await scene.state() == {
        "orders": {"entries": [("new-1", *ready(E1, 2, "w1", *payload, generation=4, suspect=True))], "billing": []},
        "{orders}:fence:billing": FENCE,
        "{orders}:group:billing": {"recovered": "1"},
        "{orders}:suspects:billing": {released[0][1]: "stream"},
        "{orders}:journal": [
            (
                "recovered",
                E1,
                {
                    "group": "billing",
                    "mode": "reaper",
                    "token": 7,
                    "entry": E1,
                    "delivery": 2,
                    "generation": 4,
                    "enqueued_ms": BASE_MS + 1,
                    "reason": "suspect",
                    "new_entry": "new-1",
                },
            )
        ],
    }


async def test_with_a_retry_stream_suspects_become_ready_there(scene: Scene) -> None:
    await scene.stalled("n", 1, times=2)
    await scene.recover(E1, policy="retry-stream", journal=False)
    _, _, _, [(job, one)] = await release(scene, policy="retry-stream", journal=False)
    state = await scene.state()
    assert (job, state["{orders}:suspects:billing"]) == (E1, {one: "retry"})
    assert state["{orders}:retry:billing"]["entries"] == [("new-1", *ready(E1, 2, "w1", "n", 1, suspect=True))]


async def test_suspects_are_released_one_at_a_time_in_order(scene: Scene) -> None:
    jobs = await park(scene, 3)
    for number, job in enumerate(jobs):
        parked, out, settled, released = await release(scene)
        assert (parked, out, settled, [one for one, _ in released]) == (2 - number, 1, min(number, 1), [job])
        assert (await release(scene))[3] == []  # ready and not read yet: still out
        [one] = await read(scene)
        assert (await release(scene))[3] == []  # and while it is being run
        await scene.settle(item(one, "ack"), journal=False)
    assert (await release(scene))[:3] == (0, 0, 1)


async def test_after_a_hundred_that_settled_the_window_doubles(scene: Scene) -> None:
    await park(scene, 200)
    await scene.agree(suspects_settled=99)
    windows = []
    for _ in range(9):
        windows.append((await release(scene, journal=False))[1])
        for one in await read(scene):
            await scene.settle(item(one, "ack"), journal=False)
    assert windows == [1, 1, 2, 8, 64, 64, 60, 0, 0]


async def test_a_crash_sets_the_window_back_to_one(scene: Scene) -> None:
    await park(scene, 10)
    await scene.agree(suspects_settled=102)
    released = (await release(scene))[3]
    assert len(released) == 4
    first, *others = await read(scene)
    await scene.settle(*(item(one, "ack") for one in others))
    await stall(scene, first)
    assert [row[0] for row in rows(await scene.recover(first))] == [DEAD]
    assert (await scene.state())["{orders}:group:billing"]["suspects_settled"] == "0"
    assert (await release(scene))[1:3] == (1, 3)


async def test_a_suspect_that_crashes_alone_is_dead_lettered(scene: Scene) -> None:
    await park(scene, 1)
    await release(scene)
    [one] = await read(scene)
    await stall(scene, one)
    assert rows(await scene.recover(one)) == [(DEAD, "w1", E1, 3)]
    assert "{orders}:suspects:billing" not in await scene.state()


async def test_two_that_crash_on_one_consumer_are_both_parked_again_in_front_and_uncounted(scene: Scene) -> None:
    jobs = await park(scene, 3)
    await scene.agree(suspects_settled=101)
    await release(scene)
    together = await read(scene)
    await stall(scene, *together)
    # The second falls due later: the first one's recovery has marked it.
    for one in together:
        assert [row[0] for row in rows(await scene.recover(one))] == [SUSPECTED]
    state = await scene.state()
    parked = [(row[0], row[2], row[3]) for row in state["{orders}:scheduled:billing"]]
    assert sorted(parked) == [("front", jobs[0], 2), ("front", jobs[1], 2), ("parked", jobs[2], 2)]
    assert [data["reason"] for _, _, data in state["{orders}:journal"][-2:]] == ["crashed_in_company"] * 2
    assert "{orders}:suspects:billing" not in state


async def test_both_that_fall_due_in_one_call_are_parked_again(scene: Scene) -> None:
    await park(scene, 2)
    await scene.agree(suspects_settled=101)
    await release(scene)
    together = await read(scene)
    await stall(scene, *together)
    assert [row[0] for row in rows(await scene.recover(*together))] == [SUSPECTED, SUSPECTED]


async def test_the_company_is_remembered_until_there_is_a_place_to_park(scene: Scene) -> None:
    await park(scene, 2)
    await scene.agree(suspects_settled=101)
    await release(scene)
    together = await read(scene)
    await stall(scene, *together)
    await scene.client.set(scene.keys.schedule, "in the way")
    assert [row[0] for row in rows(await scene.recover(*together))] == [HELD, HELD]
    await scene.client.delete(scene.keys.schedule)
    assert [row[0] for row in rows(await scene.recover(*together))] == [SUSPECTED, SUSPECTED]


async def test_a_suspect_on_another_consumer_is_no_company(scene: Scene) -> None:
    await park(scene, 2)
    await scene.agree(suspects_settled=101)
    await release(scene)
    [one], [other] = await read(scene, "w1", 1), await read(scene, "w2", 1)
    await stall(scene, one)
    assert [row[0] for row in rows(await scene.recover(one))] == [DEAD]
    assert [row[0] for row in await scene.pending()] == [other]


async def test_those_that_crashed_in_company_run_alone_next(scene: Scene) -> None:
    await park(scene, 2)
    await scene.agree(suspects_settled=101)
    await release(scene)
    together = await read(scene)
    await stall(scene, *together)
    await scene.recover(*together)
    assert (await release(scene))[:2] == (1, 1)
    [one] = await read(scene)
    await stall(scene, one)
    assert [row[0] for row in rows(await scene.recover(one))] == [DEAD]
    assert (await release(scene))[:2] == (0, 1)


@pytest.mark.parametrize("gone", ["deleted", "trimmed", "group destroyed"])
async def test_a_released_suspect_that_somebody_removed_does_not_block_the_next(scene: Scene, gone: str) -> None:
    jobs = await park(scene, 2)
    [(_, one)] = (await release(scene))[3]
    match gone:
        case "deleted":
            await scene.client.xdel("orders", one)
        case "trimmed":
            await scene.client.xtrim("orders", maxlen=0, approximate=False)
        case "group destroyed":
            await scene.client.delete("orders")
    assert (await release(scene))[3][0][0] == jobs[1]


async def test_a_member_that_is_no_job_does_not_block_the_others(scene: Scene) -> None:
    [job] = await park(scene, 1)
    for garbage in (b"garbage", b"\xc1", b"\x80", b"\x93", b""):
        await scene.client.zadd(scene.keys.schedule, {garbage: 2**52})
    assert [one for one, _ in (await release(scene))[3]] == [job]


async def test_jobs_that_are_scheduled_for_a_time_are_no_suspects(scene: Scene) -> None:
    await scene.client.zadd(scene.keys.schedule, {"due": 1})
    assert (await release(scene))[:2] == (0, 0)


async def test_where_the_copy_fails_the_suspect_stays_parked(scene: Scene) -> None:
    await park(scene, 1)
    await scene.client.set(scene.keys.retry, "in the way")
    parked, out, _, released = await release(scene, policy="retry-stream")
    assert (parked, out, released) == (1, 0, [])


@pytest.mark.parametrize("found", [None, "reaper:8:bob", "reaper:6:bob", "reaper:7:bob", "other:7:alice"])
async def test_only_the_whole_fence_opens_the_door(scene: Scene, found: str | None) -> None:
    await park(scene, 1)
    await scene.client.delete(scene.keys.fence)
    if found:
        await scene.client.set(scene.keys.fence, found)
    before = await scene.state()
    assert await scene.release() == [b"stale", (found or "").encode()]
    refused = {
        "group": "billing", "verb": "release_suspects", "token": 7, "fence": found or "", "entries": 0,
    }  # fmt: skip
    counted = {**before.get("{orders}:group:billing", {}), "refused": "1"}
    journalled = {"{orders}:journal": [("refused", "", refused)], "{orders}:group:billing": counted}
    assert await scene.state() == before | journalled


@pytest.mark.parametrize("recovery", ["embedded", "reaper", ""])
async def test_without_a_fence_only_embedded_workers_let_suspects_out(scene: Scene, recovery: str) -> None:
    [job] = await park(scene, 1)
    await scene.agree(recovery=recovery)
    reply = await scene.release(fence="")
    if recovery != "embedded":
        assert reply == [b"stale", FENCE.encode()]
        return
    assert [one for one, _ in reply[4:]] == [job.encode()]
    [(name, _, data)] = (await scene.state())["{orders}:journal"]
    assert (name, data["mode"], data["reason"], "token" in data) == ("recovered", "embedded", "suspect", False)


async def test_a_paused_group_is_left_alone(scene: Scene) -> None:
    await park(scene, 1)
    await scene.agree(paused="1")
    before = await scene.state()
    assert await scene.release() == [b"paused"]
    assert await scene.state() == before


async def test_a_second_group_forbids_copies_in_the_stream(scene: Scene) -> None:
    await park(scene, 1)
    await scene.client.xgroup_create("orders", "audit", "0")
    before = await scene.state()
    assert await scene.release() == [b"refused", b"several_groups"]
    assert await scene.state() == before


async def test_a_broken_journal_stops_nothing(scene: Scene) -> None:
    await park(scene, 1)
    await scene.client.set(scene.keys.journal, "no stream")
    assert len((await release(scene))[3]) == 1


async def test_no_journal_is_written_where_it_is_off(scene: Scene) -> None:
    await park(scene, 1)
    await release(scene, journal=False)
    assert "{orders}:journal" not in await scene.state()


async def test_suspects_are_released_when_memory_is_full(scene: Scene) -> None:
    await park(scene, 1)
    await scene.fill_memory()
    released = (await release(scene))[3]
    await scene.free_memory()
    assert len(released) == 1
    assert len(await scene.client.zrange(scene.keys.schedule, 0, -1)) == 0
