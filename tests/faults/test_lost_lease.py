"""The lease of a group is lost, alone or with all that is ours, or two namespaces want it: no stale write passes."""

from pathlib import Path

import pytest
from redis.asyncio import Redis

from reaper.failpoints import arm
from tests.conftest import StartProxy
from tests.faults.reapers import (
    Case,
    claimed,
    holding,
    nothing_left,
    quick_settings,
    replica_of,
    running,
    start_replica,
)
from tests.support.processes import Processes
from tests.support.proxy import runs
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.calls.group_moves import RECOVER
from workers.protocol.events import EventName

pytestmark = pytest.mark.anyio


@pytest.fixture
async def case(server: RedisServer, client: Redis) -> Case:
    return await Case.prepared(server, client)


async def recover_one(case: Case) -> tuple[str, list[int]]:
    """Let a job stall, wait for its recovery and run it; return it and the tokens of those who recovered it."""
    (job,) = await case.stalled(1)
    await wait_until(lambda: _was_recovered(case, job), f"job {job} is recovered")
    assert await case.work_off(nothing_left) == [job]
    return job, (await case.recovered())[job]


async def _was_recovered(case: Case, job: str) -> bool:
    return job in await case.recovered()


# ---- the lease alone


async def deleted(case: Case) -> None:
    """Somebody deletes the lease."""
    assert await case.client.delete(case.keys.lease)


async def _is_later(case: Case) -> bool:
    return await case.token() > 1


async def test_a_lease_that_is_lost_is_taken_again_and_no_job_is_recovered_twice(case: Case) -> None:
    async with holding(quick_settings(case.server)) as replica:
        first, tokens = await recover_one(case)
        assert tokens == [1]
        stalled = await case.stalled(5)
        await deleted(case)
        await wait_until(lambda: _is_later(case), "the lease is taken again")
        assert sorted(await case.work_off(nothing_left)) == sorted(stalled)
        later, _ = await recover_one(case)
        last = await case.token()
    assert {job: len(found) for job, found in (await case.recovered()).items()} == dict.fromkeys(
        [first, *stalled, later], 1
    )
    assert [event.data["reason"] for event in await case.events("lease_left")] == ["stopped"]
    assert sum("does not hold the lease any more" in line for line in replica.errors) == last - 1
    assert await case.violations(finished=True) == []


async def test_a_late_write_finds_no_open_door_where_the_lease_was(
    case: Case, processes: Processes, tmp_path: Path
) -> None:
    jobs = await case.stalled(3)
    arm(tmp_path, "recover.before_write", "stop")
    first = start_replica(processes, case.server, failpoints=tmp_path)
    await claimed(tmp_path, "recover.before_write")
    await deleted(case)
    first.resume()
    await wait_until(lambda: case.events(EventName.FENCED), "the write is fenced")
    await wait_until(lambda: _was_recovered(case, jobs[-1]), "the jobs are recovered")
    assert await case.recovered() == {job: [2] for job in jobs}
    (fenced, *_) = await case.events(EventName.FENCED)
    assert (fenced.data["token"], fenced.data.get("lease", "")) == (1, "")


async def test_a_late_write_of_an_earlier_term_is_fenced_though_the_same_replica_holds_the_lease_again(
    case: Case, client: Redis, proxy: StartProxy
) -> None:
    through = await proxy(case.server)
    await client.script_load(RECOVER.source)
    held = through.hold_request(runs(RECOVER))
    async with holding(quick_settings(through)) as replica:
        jobs = await case.stalled(3)
        await held.wait()
        before = await case.holder()
        await deleted(case)
        await wait_until(lambda: _was_recovered(case, jobs[-1]), "the jobs are recovered")
        again = await case.holder()
        assert replica_of(before) == replica_of(again) == replica.reaper.replica_id
        held.release()

        async def fenced() -> bool:  # another write may have met the missing lease
            return any(event.data.get("lease") == again for event in await case.events(EventName.FENCED))

        await wait_until(fenced, "the late write is fenced")
    assert await case.recovered() == {job: [2] for job in jobs}
    assert {event.data["token"] for event in await case.events(EventName.FENCED)} == {1}


# ---- all that is ours


# ---- two namespaces


async def test_of_two_namespaces_on_a_group_one_serves_and_the_other_waits_for_its_turn(case: Case) -> None:
    async with (
        holding(quick_settings(case.server, namespace="blue")) as blue,
        running(quick_settings(case.server, namespace="green")) as green,
    ):
        await wait_until(lambda: green.reaper.has_worked, "green knows who holds the lease")
        assert (await recover_one(case))[1] == [1]
        assert (blue.reaper.held, green.reaper.held) == (1, 0)
        blue.reaper.stop()
        await wait_until(lambda: green.reaper.held, "green holds the lease")
        assert (await recover_one(case))[1] == [2]
    assert green.errors == []
    assert await case.lease_events() == [("lease_taken", 1), ("lease_left", 1), ("lease_taken", 2), ("lease_left", 2)]
    assert await case.violations(finished=True) == []
