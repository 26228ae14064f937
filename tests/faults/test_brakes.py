"""Recovery waits for an operator's pause, an observer, a rate limit, or the recovery of a third party."""

import pytest
from redis.asyncio import Redis

from reaper.operations.groups import set_paused
from tests.faults.reapers import Case, holding, nothing_left, quick_settings
from tests.support.dump import dump
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.events import EventName

pytestmark = pytest.mark.anyio


@pytest.fixture
async def case(server: RedisServer, client: Redis) -> Case:
    return await Case.prepared(server, client)


# ---- pause and resume


async def test_a_running_holder_honours_pause_and_resume(case: Case) -> None:
    async with holding(quick_settings(case.server)):
        first = await case.stalled(3)
        await wait_until(lambda: _are_recovered(case, first), "the first jobs are recovered")
        await set_paused(case.client, case.keys, True)
        assert sorted(await case.work_off(nothing_left)) == sorted(first)
        second = await case.stalled(3)
        await case.wait_for_report(lambda report: report.paused, "the holder says that it is paused")
        assert [entry for entry, _, _ in await case.pending()] == second
        await set_paused(case.client, case.keys, False)
        await wait_until(lambda: _are_recovered(case, second), "the other jobs are recovered")
        await case.wait_for_report(lambda report: not report.paused, "the holder says that it goes on")
    assert await case.violations() == []


async def test_a_pause_outlives_a_holder_and_holds_quarantined_jobs_back_too(case: Case) -> None:
    jobs = await case.stalled(3, times=2)
    await set_paused(case.client, case.keys, True)
    for _ in range(2):
        async with holding(quick_settings(case.server)):
            await case.wait_for_report(lambda report: report.paused, "the holder says that it is paused")
    assert ([entry for entry, _, _ in await case.pending()], await case.events()) == (jobs, [])


async def _are_recovered(case: Case, jobs: list[str]) -> bool:
    return set(jobs) <= (await case.recovered()).keys()


# ---- observing


@pytest.mark.parametrize("redelivery", ["stream", "retry-stream"])
async def test_an_observer_reports_what_it_would_recover_and_writes_nothing(
    case: Case, redelivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    jobs = [
        *await case.stalled(2, times=1, consumer="w1"),
        *await case.stalled(2, times=2, consumer="w2"),
        *await case.stalled(2, times=3, consumer="w3"),
    ]
    await case.enqueue(2)
    before = await dump(case.client)
    async with holding(
        quick_settings(case.server, observe=True, redelivery=redelivery, consumer_retention=0.001),
        "stalled",
        "recovered",
    ) as observer:
        await wait_until(lambda: len(observer.heard) >= len(jobs), "all overdue deliveries are reported")
        report = await case.wait_for_report(
            lambda report: report.recovered >= len(jobs), "they are counted", namespace="reaper-observe"
        )
        again = await case.wait_for_report(
            lambda after: after.last_full_scan_ms > report.last_full_scan_ms,
            "it has scanned again",
            namespace="reaper-observe",
        )
    assert {report.name for report in observer.heard} == {"stalled"}
    assert {report.facts["entry"] for report in observer.heard} == set(jobs)
    assert (again.timers, again.recovered, len(observer.heard)) == (len(jobs), len(jobs), len(jobs)), "each once"
    (said,) = [record.message for record in caplog.records if "would_recover=" in record.message]
    assert f"would_recover={len(jobs)} " in said
    after = await dump(case.client)
    assert {key: value for key, value in after.items() if not key.startswith("{reaper-observe}")} == before


async def test_an_observer_says_when_the_policy_cannot_work_with_the_stream(case: Case) -> None:
    await case.stalled(1)
    await case.client.xgroup_create(case.keys.stream, "another", "0")
    async with holding(quick_settings(case.server, observe=True)):
        await case.wait_for_report(
            lambda report: report.refusal == "several_groups", "the refusal is reported", namespace="reaper-observe"
        )


async def test_an_observer_and_a_holder_do_not_keep_each_other_from_anything(case: Case) -> None:
    async with holding(quick_settings(case.server, observe=True)), holding(quick_settings(case.server)):
        jobs = await case.stalled(3)
        assert sorted(await case.work_off(nothing_left)) == jobs
    assert set(await case.recovered()) == set(jobs)


# ---- rate


async def test_recoveries_keep_to_their_rate(case: Case) -> None:
    rate, jobs = 100, 200
    await case.stalled(jobs)
    seconds, micros = await case.client.time()
    before_ms = seconds * 1_000 + micros // 1_000
    async with holding(quick_settings(case.server, recovery_rate=rate)):
        await wait_until(lambda: _all_ready(case, jobs), "all jobs are ready again")
    times = [event.at_ms for event in await case.events(EventName.RECOVERED)]
    # A second's worth may come at once, then they trickle. A call may be late, never early.
    early = [number for number, at_ms in enumerate(times) if number >= rate + (at_ms - before_ms) * rate / 1_000]
    assert (len(times), early) == (jobs, [])


async def _all_ready(case: Case, count: int) -> bool:
    return len((await case.state()).ready) == count
