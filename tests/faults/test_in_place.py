"""Policy `in-place`, on a server with CLAIM, for workers of ours and plain ones, a holder, and faults."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from reaper.drill.promises import Execution, FinalState
from reaper.settings import ReaperSettings
from tests.faults.reapers import VISIBILITY_MS, Case, holding, quick_settings
from tests.faults.scene import Handler, running_worker
from tests.support.servers import RedisServer
from tests.support.tiers import WITH_CLAIM
from tests.support.waiting import wait_until
from workers import Job, Retry, Worker
from workers.protocol.events import EventName
from workers.protocol.messages import pair_up, read_metadata, text

pytestmark = [pytest.mark.anyio, pytest.mark.only_on(*WITH_CLAIM), pytest.mark.contract]

MIN_IDLE_MS = 10**9


def in_place(server: RedisServer, **changes: Any) -> ReaperSettings:
    """Return the settings of a quick replica that gives back in place."""
    return quick_settings(server, redelivery="in-place", **changes)


def working(server: RedisServer, handler: Callable[[Job], Any], **changes: Any) -> AbstractAsyncContextManager[Worker]:
    """Run a worker of ours in this process until the block ends. Failed jobs are ready again at once."""
    return running_worker(server.url, handler, refresh_s=0.2, **changes)


async def claim(case: Case, consumer: str = "plain", count: int = 1_000) -> list[tuple[str, int]]:
    """Read with CLAIM, as a worker in any language may. Returns ``(entry ID, deliveries before)``."""
    reply: Any = await case.client.execute_command(
        "XREADGROUP", "GROUP", "billing", consumer, "COUNT", count, "CLAIM", MIN_IDLE_MS, "STREAMS", "orders", ">"
    )
    return [(one.decode(), before) for _, entries in reply or () for one, _, _, before in entries]


async def ready_there(case: Case) -> list[str]:
    """Return the entries that are ready in place. They are old for their owner, or have none if there is XNACK."""
    rows: Any = await case.client.execute_command("XPENDING", "orders", "billing", "-", "+", 1_000)
    return [one.decode() for one, owner, idle_ms, _ in rows if owner == b"" or idle_ms >= MIN_IDLE_MS]


async def all_ready(case: Case, count: int) -> bool:
    return len((await case.state()).ready) == count


async def test_a_dead_workers_jobs_are_given_back_where_they_are_and_plain_readers_with_claim_do_each_once(
    server: RedisServer, client: Redis
) -> None:
    case = await Case.prepared(server, client)
    await client.xgroup_create("orders", "audit", "0")
    jobs = await case.stalled(300)
    before: Any = await client.xinfo_stream("orders")
    async with holding(in_place(server)):
        await wait_until(lambda: all_ready(case, 300), "all jobs are ready again")
        taken = [await claim(case, f"w{number % 4}", 30) for number in range(20)]
        assert sorted(one for part in taken for one, _ in part) == sorted(jobs)
        assert {count for part in taken for _, count in part} == {1}
        await client.xack("orders", "billing", *jobs)
    after: Any = await client.xinfo_stream("orders")
    assert (after["length"], after["last-generated-id"]) == (before["length"], before["last-generated-id"])
    audit: Any = await client.xreadgroup("audit", "a", {"orders": ">"}, count=1_000)
    assert len(next(iter(audit))[1] if isinstance(audit, list) else audit[b"orders"]) == 300
    case.completions = [Execution(job) for job in jobs]
    assert await case.violations() == []


async def _is_dead(case: Case) -> bool:
    return len((await case.state()).dead) == 1


async def test_retries_wait_where_they_are_count_or_do_not_and_tell_the_handler(
    server: RedisServer, client: Redis
) -> None:
    case = await Case.prepared(server, client)
    [job] = await case.enqueue(1)
    seen: list[tuple[int, int, int]] = []

    async def handle(one: Job) -> None:
        seen.append((one.deliveries, one.waits, one.fencing_token))
        if len(seen) < 4:
            raise Retry("later", delay=0.01, counts=len(seen) == 3)

    async with holding(in_place(server)), working(server, handle):
        await wait_until(case.is_over, "the job is done")
    assert [one[:2] for one in seen] == [(1, 0), (1, 1), (1, 2), (2, 0)]
    assert [one[2] for one in seen] == sorted({one[2] for one in seen})
    case.starts, case.completions = [Execution(job)] * 4, [Execution(job)]
    assert await case.violations(finished=True) == []


async def test_quarantined_jobs_run_one_at_a_time_and_the_poison_alone_is_given_up(
    server: RedisServer, client: Redis
) -> None:
    case = await Case.prepared(server, client)
    jobs = await case.stalled(3, times=2, consumer="dead")
    async with holding(in_place(server)):
        out: list[str] = []
        for _ in jobs:
            await wait_until(lambda: all_ready(case, 1), "a quarantined job is out")
            [(one, count)] = await claim(case)  # a new entry, because a quarantined job leaves its own
            rows: Any = await client.xrange("orders", one, one)
            [(_, flat)] = rows
            found = read_metadata(one.encode(), pair_up(flat))
            assert (count, found.deliveries) == (0, 2)
            assert len((await case.state()).scheduled) == 2 - len(out)
            out.append(text(found.job_id))
            if len(out) == 2:
                await case.make_overdue("plain")  # it killed its worker
                await wait_until(lambda: _is_dead(case), "it is given up")
            else:
                await client.xack("orders", "billing", one)
        await wait_until(case.is_over, "nothing is left")
    assert sorted(out) == sorted(jobs)
    assert [letter.job for letter in (await case.state()).dead] == [out[1]]
    case.completions = [Execution(job) for job in jobs]
    case.starts = case.completions * 3
    assert await case.violations(poison=frozenset({out[1]})) == []


async def test_a_paused_owner_has_its_verdicts_rejected(server: RedisServer, client: Redis) -> None:
    case = await Case.prepared(server, client)
    [job] = await case.enqueue(1)
    gate, started = anyio.Event(), anyio.Event()

    async def slow(_: Job) -> None:
        started.set()
        await gate.wait()
        raise RuntimeError("too late")  # an ack would be the first completion

    one_slot = working(server, slow, concurrency=1)  # else it would claim it itself
    async with holding(in_place(server)), one_slot as worker:
        await started.wait()
        [(_, owner, _)] = await case.pending()
        assert worker.process is not None
        for held in worker.process.in_hand():
            held.proven = monotonic() - VISIBILITY_MS / 1000
        await case.stall(job, consumer="paused")  # as if it had no heartbeat for long
        await wait_until(lambda: ready_there(case), "it is given back")
        assert await claim(case) == [(job, 1)]
        gate.set()
        await wait_until(lambda: case.events(EventName.REJECTED), "the late verdict is rejected")
        assert owner != "plain"
        assert await case.pending() == [(job, "plain", 2)]


@pytest.mark.parametrize("way", ["deleted", "trimmed"])
async def test_what_is_deleted_while_it_waits_is_told_and_leaves_nothing(
    server: RedisServer, client: Redis, way: str
) -> None:
    case = await Case.prepared(server, client)
    ready, quarantined = await case.stalled(2), await case.stalled(1, times=2)
    async with holding(in_place(server)):
        await wait_until(lambda: _holds(case, 3), "all of it is laid aside")
        if way == "deleted":
            await client.xdel("orders", *ready, *quarantined)
        else:
            ms, _, number = max(ready + quarantined).partition("-")
            await client.xtrim("orders", minid=f"{ms}-{int(number) + 1}", approximate=False)  # not the released copy
    async with holding(in_place(server, visibility_timeout=1)):
        await wait_until(lambda: _no_pending(case), "the ghosts are swept")
        await wait_until(lambda: all_ready(case, 1), "the quarantined job, which had left its entry, is ready")
        [(one, _)] = await claim(case)
        await client.xack("orders", "billing", one)
        await wait_until(case.is_over, "nothing is kept for them")
    assert sorted(event.job for event in await case.events(EventName.LOST_PAYLOAD)) == sorted(ready)
    [released] = [event for event in await case.events(EventName.RECOVERED) if event.data["reason"] == "released"]
    assert [released.job] == quarantined


async def _holds(case: Case, count: int) -> bool:
    state: FinalState = await case.state()
    return len(state.ready) + len(state.scheduled) == count or state.released > 0


async def _no_pending(case: Case) -> bool:
    return await case.pending_count() == 0


@pytest.mark.parametrize("other", ["stream", "retry-stream"])
async def test_the_policy_changes_under_way_and_back_and_nothing_is_lost(
    server: RedisServer, client: Redis, other: str
) -> None:
    case, handler = await Case.prepared(server, client), Handler()
    first = await case.stalled(20)
    async with holding(in_place(server)):
        await wait_until(lambda: all_ready(case, 20), "all jobs are ready again")
    second = await case.stalled(5, times=2)
    async with holding(quick_settings(server, redelivery=other)):
        await wait_until(lambda: _copied(case), "what was ready in place is copied")
    async with holding(in_place(server)), working(server, handler, concurrency=4):
        await wait_until(case.is_over, "all jobs are settled")
    assert sorted(job.job for job in handler.starts) == sorted([*first, *second])
    case.starts, case.completions = handler.starts, handler.completions
    assert await case.violations(finished=True) == []


async def _copied(case: Case) -> bool:
    return not await ready_there(case)
