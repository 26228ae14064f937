"""Replicas share groups: hand-over, expiry, coming, going, restart."""

from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import anyio
import pytest
from redis.asyncio import Redis

from reaper.failpoints import arm
from reaper.service import Reaper
from reaper.sharing.ranking import ranked
from tests.faults import scene
from tests.faults.reapers import (
    Case,
    Listened,
    claimed,
    holding,
    nothing_left,
    quick_settings,
    replica_of,
    running,
    start_replica,
)
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.events import EventName

pytestmark = pytest.mark.anyio

STREAMS = 12
"""So many groups, each of a stream of its own."""


@pytest.fixture
async def case(server: RedisServer, client: Redis) -> Case:
    return await Case.prepared(server, client)


async def recovered_by(case: Case, count: int) -> set[int]:
    """Let jobs stall, wait for their recovery, run them; return the tokens of the terms that recovered them."""
    jobs = await case.stalled(count)

    async def tokens() -> set[int]:
        found = await case.recovered()
        return {token for job in jobs for token in found[job]} if set(jobs) <= found.keys() else set()

    found = await wait_until(tokens, "the jobs are recovered")
    assert sorted(await case.work_off(nothing_left)) == sorted(jobs)
    return found


# ---- one group


async def test_after_sigterm_another_replica_holds_long_before_the_lease_would_have_expired(
    case: Case, processes: Processes
) -> None:
    first = start_replica(processes, case.server)
    holder = await case.holds_it()
    async with running(quick_settings(case.server), after=holder) as second:
        assert await recovered_by(case, 5) == {1}
        await wait_until(lambda: knows(second.reaper, holder), "the second knows the first")
        first.terminate()
        assert await first.wait() == 0
        await wait_until(lambda: second.reaper.held, "the second holds the group")
        assert await recovered_by(case, 5) == {2}
        assert [replica.id for replica in await case.replicas()] == [second.reaper.replica_id]
        assert await case.lease_events() == [("lease_taken", 1), ("lease_left", 1), ("lease_taken", 2)]
    assert await left_because(case) == ["stopped", "stopped"]
    assert await case.violations(finished=True) == []


async def test_after_a_kill_another_replica_holds_when_the_lease_has_expired(case: Case, processes: Processes) -> None:
    first = start_replica(processes, case.server)
    async with running(quick_settings(case.server), after=await case.holds_it()) as second:
        assert await recovered_by(case, 5) == {1}
        first.kill()
        await case.end_lease(in_ms=300)
        await wait_until(lambda: second.reaper.held, "the second holds the group")
        assert await recovered_by(case, 5) == {2}
        assert await case.lease_events() == [("lease_taken", 1), ("lease_taken", 2)]
    assert await case.violations(finished=True) == []


async def test_a_holder_that_was_paused_over_its_expiry_writes_nothing_and_gets_its_group_back(
    case: Case, processes: Processes, tmp_path: Path
) -> None:
    jobs = await case.stalled(3)
    arm(tmp_path, "recover.before_write", "stop")
    first = start_replica(processes, case.server, failpoints=tmp_path)
    await claimed(tmp_path, "recover.before_write")
    holder = await case.holder()
    await case.end_lease()
    async with holding(quick_settings(case.server), after=replica_of(holder)):
        await wait_until(case.recovered, "the jobs are recovered")
        first.resume()
        await first.prints("write fenced, this replica does not hold the lease any more")
        await first.prints("lease taken: group=orders/billing token=3")
        again = await case.holder()
    assert (replica_of(again), again != holder) == (replica_of(holder), True), "in a term of its own"
    assert await case.recovered() == {job: [2] for job in jobs}
    assert {event.data["token"] for event in await case.events(EventName.FENCED)} == {1}
    assert await case.lease_events() == [("lease_taken", 1), ("lease_taken", 2), ("lease_left", 2), ("lease_taken", 3)]
    assert await left_because(case) == ["handed_over"]


async def left_because(case: Case) -> list[str]:
    """Return why terms were left, oldest first."""
    return [event.data["reason"] for event in await case.events(EventName.LEASE_LEFT)]


def knows(reaper: Reaper, *others: str) -> bool:
    """Tell whether ``reaper`` knows these, and no others, besides itself."""
    return set(reaper._context.able or ()) == {reaper.replica_id, *others}


# ---- several groups


class Sharing:
    """Groups that replicas share, and the replicas."""

    def __init__(self, server: RedisServer, cases: list[Case]) -> None:
        self.cases = cases
        self._settings = quick_settings(server, groups=",".join(case.keys.name for case in cases))
        self._running = AsyncExitStack()
        self.replicas: list[Listened] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    async def join(self) -> Listened:
        """Run one replica more."""
        replica = await self._running.enter_async_context(running(self._settings))
        self.replicas.append(replica)
        return replica

    async def holders(self) -> list[str]:
        """Return which replica holds each group; '' = none, or it is offered to one."""
        return [replica_of(await case.holder()) for case in self.cases]

    async def are_shared(self, *able: Listened) -> list[str]:
        """Wait until each group is held by the one of ``able`` that comes first for it. Return the holders."""
        ids = [one.reaper.replica_id for one in able]
        wanted = [ranked(ids, case.keys.name)[0] for case in self.cases]

        async def as_wanted() -> bool:
            return await self.holders() == wanted

        await wait_until(as_wanted, "each group is held by the replica that comes first for it")
        await wait_until(
            lambda: [one.reaper.held for one in able] == [wanted.count(one) for one in ids], "each knows what it holds"
        )
        return wanted

    async def are_served(self) -> None:
        """Let a job stall in each group, one after the other, and see it recovered."""
        for case in self.cases:
            await recovered_by(case, 1)

    async def each_was_recovered_once(self) -> None:
        """Wait until every job that stalled was recovered, and check the history of each group."""
        for case in self.cases:

            async def all_recovered(case: Case = case) -> bool:
                return set(case.enqueued) <= (await case.recovered()).keys()

            await wait_until(all_recovered, "all jobs are recovered")
            assert {len(tokens) for tokens in (await case.recovered()).values()} == {1}
            await check_terms(case)


async def check_terms(case: Case) -> None:
    """Check that a term begins when the one before has ended, and that each recovery is by the holder.

    The order in the journal is that of the writes.
    """
    held = last = 0
    for event in await case.events(*scene.OF_LEASES, EventName.RECOVERED):
        token = event.data["token"]
        if event.event == EventName.LEASE_TAKEN:
            assert (held, token) == (0, last + 1)
            held = last = token
        else:
            assert token == held
            held = 0 if event.event == EventName.LEASE_LEFT else held


@pytest.fixture
async def sharing(server: RedisServer, client: Redis) -> Sharing:
    """Groups, each of a stream of its own."""
    return Sharing(server, [await Case.prepared(server, client, f"orders-{number}") for number in range(STREAMS)])


async def test_replicas_share_the_groups_and_nothing_moves_but_what_must(sharing: Sharing) -> None:
    async with sharing:
        first, second = await sharing.join(), await sharing.join()
        third = await sharing.join()
        by_three = await sharing.are_shared(first, second, third)
        await sharing.are_served()
        gone = first.reaper.replica_id
        first.reaper.stop()
        by_two = await sharing.are_shared(second, third)
        assert [one for one in by_three if one != gone] == [
            now for before, now in zip(by_three, by_two, strict=True) if before != gone
        ], "what the others held stays theirs"
        await sharing.are_served()
        fourth = await sharing.join()
        came = fourth.reaper.replica_id
        again = await sharing.are_shared(second, third, fourth)
        assert all(now in (before, came) for before, now in zip(by_two, again, strict=True))
        await sharing.are_served()
        await sharing.each_was_recovered_once()


async def test_jobs_that_stall_while_replicas_come_and_go_are_recovered_once(sharing: Sharing) -> None:
    async def meanwhile(done: Awaitable[object]) -> None:
        """Let jobs stall until it is done. A look that is cut off would leave a job read, and due in an hour."""
        is_over = False

        async def stall_on() -> None:
            while not is_over:
                await sharing.are_served()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stall_on)
            await done
            is_over = True

    async with sharing:
        first = await sharing.join()
        await sharing.are_shared(first)
        second = await sharing.join()
        await meanwhile(sharing.are_shared(first, second))
        first.reaper.stop()
        await meanwhile(sharing.are_shared(second))
        await sharing.are_served()
        await sharing.each_was_recovered_once()
