"""Who leads next, and what a replica takes along: failover, restart, reload."""

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.faults.reapers import (
    QUICK,
    VISIBILITY_MS,
    Case,
    leading,
    nothing_left,
    quick_settings,
    running,
    start_replica,
)
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.messages import text

pytestmark = pytest.mark.anyio

WAITS: dict[str, Any] = {"acquire_retry_interval": 3_600}
"""A follower that looks at a lease of an hour again when that has expired, or when it is woken."""


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


# ---- failover


async def test_after_sigterm_a_follower_leads_long_before_the_lease_would_have_expired(
    case: Case, processes: Processes
) -> None:
    leader = start_replica(processes, case.server, **WAITS)
    await leader.prints("lease taken: group=orders/billing token=1")
    async with running(quick_settings(case.server, **WAITS)) as follower:
        assert await recovered_by(case, 5) == {1}
        leader.terminate()
        assert await leader.wait() == 0
        await wait_until(lambda: follower.reaper.held, "the follower leads")
        assert await recovered_by(case, 5) == {2}
        assert [replica.id for replica in await case.replicas()] == [follower.reaper.replica_id]
        assert await case.lease_events() == [("lease_acquired", 1), ("lease_released", 1), ("lease_acquired", 2)]
    assert await case.violations(finished=True) == []


async def test_after_a_kill_a_follower_leads_when_the_lease_has_expired(case: Case, processes: Processes) -> None:
    leader = start_replica(processes, case.server)
    await leader.prints("lease taken: group=orders/billing token=1")
    async with running(quick_settings(case.server)) as follower:
        assert await recovered_by(case, 5) == {1}
        leader.kill()
        await case.end_lease(in_ms=300)
        await wait_until(lambda: follower.reaper.held, "the follower leads")
        assert await recovered_by(case, 5) == {2}
        assert await case.lease_events() == [("lease_acquired", 1), ("lease_acquired", 2)]
    assert await case.violations(finished=True) == []


async def test_of_many_replicas_one_leads_and_each_that_ends_is_followed_by_one(case: Case) -> None:
    async with (
        running(quick_settings(case.server)) as first,
        running(quick_settings(case.server)) as second,
        running(quick_settings(case.server)) as third,
    ):
        replicas = [first.reaper, second.reaper, third.reaper]
        for token in (1, 2, 3):
            leader = await wait_until(lambda: next((one for one in replicas if one.is_leader), None), "somebody leads")
            assert leader
            assert await recovered_by(case, 3) == {token}
            assert [one for one in replicas if one.is_leader] == [leader]
            replicas.remove(leader)
            leader.stop()
    assert await case.lease_events() == [
        (event, token) for token in (1, 2, 3) for event in ("lease_acquired", "lease_released")
    ]
    assert (await case.violations(finished=True), await case.replicas()) == ([], ())


# ---- restart


async def test_quarantined_jobs_are_released_by_the_next_leader(case: Case) -> None:
    jobs = await case.stalled(4, times=2)

    async def quarantined() -> bool:
        state = await case.state()
        return len(state.scheduled) == 3 and state.released == 1

    async with leading(quick_settings(case.server)):
        await wait_until(quarantined, "one is released, the others are quarantined")
    # Between two leaders the one that was out settles.
    assert await case.work_off(lambda state: not state.ready) == jobs[:1]
    assert len((await case.state()).scheduled) == 3
    async with leading(quick_settings(case.server)):
        assert await case.work_off(nothing_left) == jobs[1:]
    assert await case.violations(finished=True) == []


# ---- reload


def write_config(file: Path, *pairs: str, **changes: float) -> None:
    """Write a settings file that watches ``pairs``, with `QUICK` settings, changed."""
    tables = [f'[[groups]]\nstream = "{stream}"\ngroup = "{group}"\n' for stream, group in _split(pairs)]
    settings = {name: value for name, value in {**QUICK, **changes}.items() if name != "groups"}
    file.write_text("\n".join([*(f"{name} = {value}" for name, value in settings.items()), *tables]))


def _split(pairs: tuple[str, ...]) -> list[list[str]]:
    return [pair.split("/") for pair in pairs]


@pytest.fixture
async def reloadable(case: Case, processes: Processes, tmp_path: Path) -> tuple[Running, Path]:
    """A replica process that leads, and its settings file."""
    file = tmp_path / "reaper.toml"
    write_config(file, "orders/billing")
    replica = processes.python(
        "-m", "tests.support.paced", "run", "--config", str(file), "--redis-url", case.server.url
    )
    await replica.prints("lease taken: group=orders/billing token=1")
    return replica, file


async def test_sighup_adds_a_pair_within_the_term(case: Case, client: Redis, reloadable: tuple[Running, Path]) -> None:
    replica, file = reloadable
    added = await Case.prepared(case.server, client, "invoices", "audit")
    assert await recovered_by(case, 3) == {1}
    write_config(file, "orders/billing", "invoices/audit")
    replica.hang_up()
    assert await recovered_by(added, 3) == {1}
    assert await recovered_by(case, 3) == {1}
    assert await case.lease_events() == [("lease_acquired", 1)]
    reports = (await case.replicas())[0].groups
    assert sorted(reports) == ["invoices/audit", "orders/billing"]


async def test_sighup_takes_a_pair_away_and_its_group_is_left_alone(
    case: Case, client: Redis, reloadable: tuple[Running, Path]
) -> None:
    replica, file = reloadable
    other = await Case.prepared(case.server, client, "invoices", "audit")
    write_config(file, "invoices/audit")
    replica.hang_up()
    assert await recovered_by(other, 3) == {1}
    await case.stalled(3)
    assert await recovered_by(other, 3) == {1}  # so much later, and ours are pending still
    assert (await case.pending_count(), await case.events()) == (3, [])
    assert list((await case.replicas())[0].groups) == ["invoices/audit"]


async def test_sighup_with_settings_that_cannot_work_changes_nothing(
    case: Case, reloadable: tuple[Running, Path]
) -> None:
    replica, file = reloadable
    file.write_text('visibility_timeout = "soon"\n')
    replica.hang_up()
    await replica.prints("cannot reload settings, the old ones stay in force: .*visibility_timeout")
    assert await recovered_by(case, 3) == {1}
    assert replica.running


async def test_a_pair_whose_timeout_is_changed_by_sighup_goes_by_the_new_one(
    case: Case, reloadable: tuple[Running, Path]
) -> None:
    replica, file = reloadable
    await wait_until(case.report, "the pair is served")
    jobs = await case.enqueue(3)
    await case.read()
    await case.age(VISIBILITY_MS * 3 // 4)
    write_config(file, "orders/billing", visibility_timeout=VISIBILITY_MS / 2_000)
    replica.hang_up()
    await case.wait_for_report(lambda report: report.visibility_ms == VISIBILITY_MS // 2, "the new one is in force")
    await wait_until(lambda: _agreed(case, "visibility_ms", str(VISIBILITY_MS // 2)), "the group agrees on it")
    await wait_until(lambda: _are_recovered(case, jobs), "what is overdue by it alone is recovered")
    assert await case.recovered() == {job: [1] for job in jobs}


async def _are_recovered(case: Case, jobs: list[str]) -> bool:
    return set(jobs) <= (await case.recovered()).keys()


async def _agreed(case: Case, name: str, value: str) -> bool:
    agreed = await case.client.hget(case.keys.agreement, name)
    return agreed is not None and text(agreed) == value
