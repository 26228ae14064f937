"""The token counter is lost or goes back, the fence is evicted, a stranger comes: no stale write passes."""

from pathlib import Path

import pytest
from redis.asyncio import Redis

from reaper.failpoints import arm
from tests.faults.reapers import Case, claimed, leading, nothing_left, quick_settings, start_replica
from tests.support.dump import dump
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.events import EventName
from workers.protocol.keys import namespace_keys

pytestmark = pytest.mark.anyio

KEYS = namespace_keys("reaper")
ONCE = {"full_scan_interval": 3_600}
"""A leader that scans all once, and then only what is new: nothing that it tells of a scan meets a fence first."""


@pytest.fixture
def seldom_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No leader looks at schedules by itself: none meets a fence on that occasion."""
    monkeypatch.setattr("workers.upkeep.schedules.LATEST_LOOK_S", 3_600)


async def recover_one(case: Case) -> tuple[str, list[int]]:
    """Let a job stall, wait for its recovery and run it; return it and the tokens of those who recovered it."""
    (job,) = await case.stalled(1)

    async def tokens() -> list[int] | None:
        return (await case.recovered()).get(job)

    found = await wait_until(tokens, f"job {job} is recovered")
    assert found
    assert await case.work_off(nothing_left) == [job]
    return job, found


# ---- the counter


@pytest.mark.parametrize("left", [None, "7"], ids=["deleted", "set back"])
async def test_a_counter_that_was_lost_is_raised_past_the_fence_and_recovery_goes_on(
    server: RedisServer, client: Redis, left: str | None
) -> None:
    case = await Case.prepared(server, client)
    await client.set(KEYS.token, 41)
    async with leading(quick_settings(server)):
        assert (await recover_one(case))[1] == [42]
        await (client.set(KEYS.token, left) if left else client.delete(KEYS.token))
        assert (await recover_one(case))[1] == [42], "who leads needs no counter"
    async with leading(quick_settings(server)):
        assert (await recover_one(case))[1] == [43]
    behind = int(left or 0) + 1
    assert await case.lease_events() == [
        ("lease_acquired", 42),
        ("lease_released", 42),
        ("lease_acquired", behind),
        ("lease_released", behind),
        ("lease_acquired", 43),
        ("lease_released", 43),
    ]
    assert [event.data["reason"] for event in await case.lease_history() if event.event == "lease_released"] == [
        "released",
        "token_behind",
        "released",
    ]
    await case.work_off(nothing_left)
    assert await case.violations(finished=True) == []


async def test_of_two_holders_with_one_number_the_second_starts_a_later_term(
    server: RedisServer, client: Redis, processes: Processes, tmp_path: Path
) -> None:
    case = await Case.prepared(server, client)
    jobs = await case.stalled(3)
    arm(tmp_path, "recover.before_write", "stop")
    first = start_replica(processes, server, failpoints=tmp_path)
    await claimed(tmp_path, "recover.before_write")
    await client.delete(KEYS.token)
    await case.end_lease()
    async with leading(quick_settings(server)):
        await wait_until(case.recovered, "the jobs are recovered")
        first.resume()
        await wait_until(lambda: case.events(EventName.REFUSED), "the write of the first holder is refused")
    assert await case.recovered() == {job: [2] for job in jobs}
    acquired = [event for event in await case.lease_events() if event[0] == "lease_acquired"]
    assert acquired[:3] == [("lease_acquired", 1), ("lease_acquired", 1), ("lease_acquired", 2)]
    assert {event.data["token"] for event in await case.events(EventName.REFUSED)} == {1}


# ---- the fence


@pytest.mark.usefixtures("seldom_looked")
async def test_a_fence_that_was_evicted_ends_the_term_and_recovery_goes_on(server: RedisServer, client: Redis) -> None:
    case = await Case.prepared(server, client)
    async with leading(quick_settings(server, **ONCE), "lease_left") as leader:
        assert (await recover_one(case))[1] == [1]
        await client.delete(case.keys.lease)
        assert (await recover_one(case))[1] == [2]
    assert [report.facts["reason"] for report in leader.heard] == ["stale", "released"]
    refused = await case.events(EventName.REFUSED)  # none where another write than a recovery met it first
    assert {(event.data["token"], event.data.get("fence", "")) for event in refused} <= {(1, "")}
    assert await case.fence_token() == 2
    assert await case.violations() == []


@pytest.mark.usefixtures("seldom_looked")
async def test_a_paused_leader_finds_no_open_door_where_the_fence_was(
    server: RedisServer, client: Redis, processes: Processes, tmp_path: Path
) -> None:
    case = await Case.prepared(server, client)
    jobs = await case.stalled(3)
    arm(tmp_path, "recover.before_write", "stop")
    first = start_replica(processes, server, failpoints=tmp_path)
    await claimed(tmp_path, "recover.before_write")
    await case.end_lease()
    async with leading(quick_settings(server, **ONCE)):
        await wait_until(case.recovered, "the jobs are recovered")
        late = await case.enqueue(1)  # ready: nothing that would make the new leader write
        await client.delete(case.keys.lease)
        first.resume()

        async def refused() -> bool:  # housekeeping of the new leader may have been refused first, and begun a new term
            return any(event.data["token"] == 1 for event in await case.events(EventName.REFUSED))

        await wait_until(refused, "the write of the first leader is refused")
    assert await case.recovered() == {job: [2] for job in jobs}
    assert set((await case.state()).ready) == {*jobs, *late}


async def test_with_fence_and_counter_gone_together_the_agreement_remembers(server: RedisServer, client: Redis) -> None:
    case = await Case.prepared(server, client)
    await client.set(KEYS.token, 4)
    async with leading(quick_settings(server)):
        assert (await recover_one(case))[1] == [5]
    await client.delete(KEYS.token, case.keys.lease)
    async with leading(quick_settings(server)):
        assert (await recover_one(case))[1] == [6]
    assert await case.violations() == []


async def test_with_everything_of_ours_gone_recovery_starts_over_and_the_old_leader_is_refused(
    server: RedisServer, client: Redis, processes: Processes, tmp_path: Path
) -> None:
    case = await Case.prepared(server, client)
    jobs = await case.stalled(3)
    arm(tmp_path, "recover.before_write", "stop")
    first = start_replica(processes, server, failpoints=tmp_path)
    await claimed(tmp_path, "recover.before_write")
    await client.delete(*(key for key in await client.keys("*") if key != b"orders"))
    async with leading(quick_settings(server)) as leader:
        await wait_until(case.recovered, "the jobs are recovered")
        fence = await client.get(case.keys.lease)
        first.resume()
        await wait_until(lambda: case.events(EventName.REFUSED), "the write of the old leader is refused")
        assert (await client.get(case.keys.lease), leader.reaper.held) == (fence, True)
    assert await case.recovered() == {job: [1] for job in jobs}


# ---- another namespace


async def test_a_second_namespace_on_a_group_refuses_loudly_and_writes_nothing(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    case = await Case.prepared(server, client)
    async with leading(quick_settings(server, namespace="blue")):
        await recover_one(case)
    agreed = (await dump(client))[case.keys.agreement]
    (job,) = await case.enqueue(1)
    await case.stall(*await case.read())
    async with leading(quick_settings(server, namespace="green"), "error") as leader:
        report = await case.wait_for_report(lambda report: bool(report.refusal), "green refuses", namespace="green")
        await wait_until(leader.errors, "the refusal is reported")
        assert report.refusal == "foreign_namespace"
        untouched = await dump(client)
        assert (untouched[case.keys.agreement], await case.pending()) == (agreed, [(job, "w1", 1)])
        async with leading(quick_settings(server, namespace="blue")):
            await wait_until(lambda: _was_recovered(case, job), "blue recovers the job")
    assert [error.split(":")[0] for error in leader.errors()] == ["foreign_namespace"]
    assert "namespace 'blue' serves this group" in leader.errors()[0]
    assert any(
        record.levelname == "ERROR" and "'green' writes nothing here" in record.message for record in caplog.records
    )
    assert (await case.recovered())[job] == [2]


async def _was_recovered(case: Case, job: str) -> bool:
    return job in await case.recovered()


async def test_after_an_eviction_one_of_two_namespaces_serves_and_the_other_refuses(
    server: RedisServer, client: Redis
) -> None:
    case = await Case.prepared(server, client)
    async with (
        leading(quick_settings(server, namespace="blue")),
        leading(quick_settings(server, namespace="green")),
    ):
        await wait_until(lambda: _refusals(case), "one of them refuses")
        await client.delete(case.keys.lease)
        _, tokens = await recover_one(case)
        assert len(tokens) == 1
        await wait_until(lambda: _refusals(case), "one of them refuses")
        assert (await recover_one(case))[1] == tokens, "whoever serves goes on doing so"
    assert await case.violations(finished=True) == []


async def _refusals(case: Case) -> bool:
    reports = [await case.report(namespace) for namespace in ("blue", "green")]
    return sorted(report.refusal for report in reports if report) == ["", "foreign_namespace"]
