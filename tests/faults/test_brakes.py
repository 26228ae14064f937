"""Recovery waits for an operator's pause, and an observer recovers nothing."""

import pytest
from redis.asyncio import Redis

from reaper.operations.groups import set_paused
from tests.faults.reapers import Case, holding, nothing_left, quick_settings
from tests.support.dump import dump
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers import Producer

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
    async with Producer(case.keys.stream, case.server.url) as producer:
        await producer.enqueue({"n": "due"}, delay=0.001)
    before = await dump(case.client)
    async with holding(quick_settings(case.server, observe=True, redelivery=redelivery, consumer_retention=0.001)):
        report = await case.wait_for_report(
            lambda report: report.recovered >= len(jobs), "they are counted", namespace="reaper-observe"
        )
        again = await case.wait_for_report(
            lambda after: after.last_full_scan_ms > report.last_full_scan_ms,
            "it has scanned again",
            namespace="reaper-observe",
        )
    assert (again.timers, again.recovered) == (len(jobs), len(jobs)), "each once"
    (said,) = [record.message for record in caplog.records if "would_recover=" in record.message]
    assert f"would_recover={len(jobs)} " in said
    after = await dump(case.client)
    assert {key: value for key, value in after.items() if not key.startswith("{reaper-observe}")} == before


async def test_an_observer_says_when_the_policy_cannot_work_with_the_stream(case: Case) -> None:
    await case.stalled(1)
    await case.client.xgroup_create(case.keys.stream, "another", "0")
    async with holding(quick_settings(case.server, observe=True)):
        await case.wait_for_report(
            lambda report: report.disabled == "several_groups" and report.recovered == 1,
            "that is reported, also after the job is overdue",
            namespace="reaper-observe",
        )
        await case.client.xgroup_destroy(case.keys.stream, "another")
        await case.wait_for_report(lambda report: not report.disabled, "it is over", namespace="reaper-observe")


async def test_an_observer_logs_false_alarms_although_no_other_delivery_becomes_overdue(
    case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("reaper.recovery.observing.LOG_MS", 0)
    (job,) = await case.stalled(1)
    async with holding(quick_settings(case.server, observe=True)):
        await case.wait_for_report(lambda report: report.recovered == 1, "it is counted", namespace="reaper-observe")
        await case.client.xack(case.keys.stream, case.keys.group, job)
        await wait_until(lambda: "false_alarms=1" in caplog.text, "the counts are logged during the term")
