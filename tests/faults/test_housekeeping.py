"""Events of a group while a holder watches. Groups come and go, entries are deleted, consumers fall silent."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.operations.judgement import judge
from reaper.operations.ready_again import Outcome, ReadyAgain
from reaper.operations.snapshot import take_snapshot
from reaper.reasons import ProblemKind
from reaper.replicas import GroupReport
from tests.faults.reapers import Case, Listened, holding, nothing_left, quick_settings
from tests.faults.scene import Handler, running_worker
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.calls.declined import Declined
from workers.protocol.calls.group_moves import CleanupResult
from workers.protocol.events import EventName
from workers.protocol.keys import MARKER_CONSUMER, group_keys, namespace_keys
from workers.protocol.messages import text
from workers.upkeep.cleanup import GroupCleanup

pytestmark = pytest.mark.anyio

SELDOM = 60
DESTROYED = "the group was destroyed"
"""Seconds between full scans of a holder that is to notice by other means."""


@pytest.fixture
async def case(server: RedisServer, client: Redis) -> Case:
    return await Case.prepared(server, client)


# ---- groups


async def test_a_group_that_is_created_later_is_picked_up(server: RedisServer, client: Redis) -> None:
    case = Case(server, client, group_keys("orders", "billing"))
    async with holding(quick_settings(server)):
        await case.wait_for_report(lambda report: report.disabled == "no_group", "the group is missed")
        await client.xgroup_create("orders", "billing", "0", mkstream=True)
        jobs = await case.stalled(3)
        assert sorted(await case.work_off(nothing_left)) == jobs
        await case.wait_for_report(lambda report: not report.disabled, "the group is served")
    assert set(await case.recovered()) == set(jobs)


async def _reports(case: Case, jobs: list[str]) -> bool:
    return sorted(event.job for event in await case.events(EventName.LOST_DELIVERY)) == jobs


# ---- made again by a third party


async def remake(case: Case, start: str) -> None:
    """Destroy the group and create it again, as an operator or a third-party worker does."""
    async with case.client.pipeline(transaction=True) as pipeline:
        pipeline.xgroup_destroy("orders", "billing")
        pipeline.xgroup_create("orders", "billing", start)
        await pipeline.execute()


async def _is_marked(case: Case) -> bool:
    return await case.client.hexists(case.keys.settings, "marked")


@pytest.mark.parametrize("consumer", ["again", "another"])
async def test_what_a_group_held_that_was_made_again_is_reported_whoever_reads_now(case: Case, consumer: str) -> None:
    jobs = await case.enqueue(4)
    async with holding(quick_settings(case.server)) as replica:
        await case.read("again", count=4)
        await scanned_fully(case, 4)
        await wait_until(lambda: _is_marked(case), "the group is marked")
        await remake(case, "$")
        await case.client.xgroup_createconsumer("orders", "billing", consumer)
        await wait_until(lambda: _reports(case, jobs), "what was pending is reported")
        assert replica.errors[0].startswith(DESTROYED)
    assert await case.pending() == []


async def test_what_is_delivered_again_anyway_is_not_lost(case: Case) -> None:
    jobs = await case.enqueue(4)
    async with holding(quick_settings(case.server)) as replica:
        await case.read(count=4)
        await scanned_fully(case, 4)
        await wait_until(lambda: _is_marked(case), "the group is marked")
        await remake(case, "0")
        await wait_until(lambda: _was_lost(replica), "the holder has noticed")
        await looked_again(case)
        assert sorted(await case.work_off(nothing_left)) == jobs
    assert await case.events(EventName.LOST_DELIVERY) == []


async def _was_lost(replica: Listened) -> bool:
    return any(line.startswith(DESTROYED) for line in replica.errors)


@pytest.mark.parametrize("again", ["by a third party", "by a worker"])
async def test_a_group_that_was_destroyed_while_no_holder_watched_is_reported_and_no_first_group_is(
    case: Case, again: str
) -> None:
    await case.enqueue(4)
    async with holding(quick_settings(case.server)):
        await case.read(count=4)
        await scanned_fully(case, 4)
        await wait_until(lambda: _is_marked(case), "the group is marked")
        assert ProblemKind.LOST_GROUP not in await troubles(case)
    await case.client.xgroup_destroy("orders", "billing")
    if again == "by a third party":
        await case.client.xgroup_create("orders", "billing", "$")
    else:
        async with running_worker(case.server.url, Handler()):
            pass
    async with holding(quick_settings(case.server)) as replica:
        await wait_until(lambda: _was_lost(replica), "it is reported")
        assert ProblemKind.LOST_GROUP in await troubles(case)
        await looked_again(case)
        assert [line.startswith(DESTROYED) for line in replica.errors] == [True]


async def troubles(case: Case) -> set[str]:
    """Return why the service is degraded."""
    return {problem.check for problem in judge(await take_snapshot(case.client, namespace_keys("reaper")))}


# ---- the retry stream


async def _retries_can_be_read(case: Case) -> bool:
    groups: Any = await case.client.xinfo_groups(case.keys.retry) if await case.client.exists(case.keys.retry) else []
    return [group["name"] for group in groups] == [b"billing"]


async def test_a_job_recovered_into_a_retry_stream_that_was_deleted_can_be_read(case: Case) -> None:
    settings = quick_settings(case.server, redelivery="retry-stream", full_scan_interval=SELDOM)
    async with holding(settings):
        await wait_until(lambda: _retries_can_be_read(case), "the retry stream is made")
        jobs = await case.enqueue(3)
        await case.read()
        await case.wait_for_report(lambda report: report.timers == 3, "the deliveries are watched")
        await case.make_overdue()  # which is seen by the full scan that a missing group asks for
        async with case.client.pipeline(transaction=True) as pipeline:
            # The stream is there again before the holder has seen that it was not, as by a copy that it has written.
            pipeline.delete(case.keys.retry)
            pipeline.xadd(case.keys.retry, {"n": "by hand"})
            by_hand = text((await pipeline.execute())[1])
        await wait_until(lambda: _retries_can_be_read(case), "the group is made again")
        assert sorted(await case.work_off(nothing_left)) == sorted([*jobs, by_hand])
    case.enqueued[by_hand] = [(b"n", b"by hand")]
    assert await case.violations() == []


# ---- entries


async def test_an_entry_deleted_while_it_was_pending_is_acknowledged_and_told_of(case: Case) -> None:
    jobs = await case.stalled(3)
    await case.client.xdel("orders", jobs[1])
    async with holding(quick_settings(case.server)) as replica:
        assert await case.work_off(nothing_left) == [jobs[0], jobs[2]]
        await wait_until(lambda: replica.errors, "the loss is reported")
    assert (["payload is lost" in line for line in replica.errors], await _lost_payloads(case)) == ([True], 1)
    (lost,) = await case.events(EventName.LOST_PAYLOAD)
    assert (lost.job, lost.data["entry"], lost.data["consumer"]) == (jobs[1], jobs[1], "w1")
    assert await case.violations() == []


async def _lost_payloads(case: Case) -> int:
    return int(await case.client.hget(case.keys.settings, "lost_payload") or 0)


# ---- consumers


async def _consumers(case: Case) -> set[str]:
    consumers: Any = await case.client.xinfo_consumers("orders", "billing")
    return {text(consumer["name"]) for consumer in consumers} - {MARKER_CONSUMER}


async def _are_consumers(case: Case, names: set[str]) -> bool:
    return await _consumers(case) == names


# ---- deleted consumers with deliveries

OURS = "host~0123456789ab"
LOST_CONSUMER = "its unsettled deliveries are lost"
"""As workers of ours name their consumers."""


async def give_word(case: Case, consumer: str, *, for_ms: int = -60_000) -> None:
    """Join as a worker of ours does. Its registration lasts so long, or ended a minute ago for a dead one."""
    seconds, _ = await case.client.time()
    until_ms = seconds * 1_000 + for_ms
    await case.client.hset(case.keys.settings, f"registration:{consumer}", f"{until_ms},")


def settle(pipeline: Any, case: Case, consumer: str, acknowledged: str, *, journalled: bool) -> None:
    """Let ``consumer`` settle one delivery."""
    pipeline.xack("orders", "billing", acknowledged)
    if journalled:
        fields = {"event": "acked", "group": "billing", "consumer": consumer, "entry": acknowledged}
        pipeline.xadd(case.keys.journal, fields)


async def drop(case: Case, consumer: str, *, acknowledged: str, journalled: bool) -> None:
    """Let ``consumer`` settle one delivery, and delete it with the others, before a holder looks."""
    async with case.client.pipeline(transaction=True) as pipeline:
        settle(pipeline, case, consumer, acknowledged, journalled=journalled)
        pipeline.xgroup_delconsumer("orders", "billing", consumer)
        await pipeline.execute()


def _was_later(moment_ms: int, report: GroupReport) -> bool:
    return report.last_full_scan_ms > moment_ms


async def looked_again(case: Case) -> GroupReport:
    """Wait until what is lost now would have been reported; return what the holder reports then."""
    report = await case.wait_for_report(lambda report: report.last_full_scan_ms > 0, "a full scan is over")
    for _ in range(3):
        is_newer = partial(_was_later, report.last_full_scan_ms)
        report = await case.wait_for_report(is_newer, "the holder looks again")
    return report


async def test_what_is_deleted_between_a_scan_and_the_cleanup_behind_it_is_reported_with_its_deliveries(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await case.enqueue(4)
    await case.client.xgroup_createconsumer("orders", "billing", OURS)
    tidy, drops = GroupCleanup.tidy, list[bool]()

    async def tidy_late(cleanup: GroupCleanup, retention: timedelta | None) -> CleanupResult | Declined:
        if drops and drops.pop():
            await drop(case, OURS, acknowledged=jobs[1], journalled=True)
        return await tidy(cleanup, retention)

    monkeypatch.setattr(GroupCleanup, "tidy", tidy_late)
    async with holding(quick_settings(case.server)):
        await give_word(case, OURS)
        await case.read(OURS, count=4)
        await scanned_fully(case, 4)
        drops.append(True)
        await wait_until(lambda: _reports(case, [jobs[0], *jobs[2:]]), "what it held is reported")


@pytest.mark.parametrize("journalled", [True, False])
@pytest.mark.parametrize("redelivery", ["stream", "retry-stream"])
async def test_what_a_dead_worker_held_whose_consumer_is_deleted_is_reported_and_requeued(
    case: Case, redelivery: str, journalled: bool
) -> None:
    jobs = await case.enqueue(4)
    await case.client.xgroup_createconsumer("orders", "billing", OURS)  # before its word, which is no loss then
    async with holding(quick_settings(case.server, redelivery=redelivery)) as replica:
        await give_word(case, OURS)
        await case.read(OURS, count=4)
        await scanned_fully(case, 4)
        await drop(case, OURS, acknowledged=jobs[1], journalled=journalled)
        lost = [jobs[0], *jobs[2:]] if journalled else jobs
        await wait_until(lambda: _reports(case, lost), "what it held is reported")
        both = [LOST_CONSUMER, "its pending deliveries are lost"]
        await wait_until(lambda: all(any(one in line for line in replica.errors) for one in both), "both are reported")
        assert ProblemKind.LOST_DELIVERY in await troubles(case)
        assert await requeue_lost(case) == len(lost)
        assert await requeue_lost(case) == 0
        assert ProblemKind.LOST_DELIVERY not in await troubles(case)
        assert sorted(await case.work_off(nothing_left)) == lost
    told = await case.events(EventName.LOST_DELIVERY)
    assert {(event.data["consumer"], event.data["certain"]) for event in told} == {(OURS, 1)}


async def requeue_lost(case: Case) -> int:
    """Give back the lost deliveries, as ``reaper groups requeue --lost`` does; return how many."""
    results = [one async for one in ReadyAgain(case.client, case.keys).requeue((), since_ms=0)]
    return sum(result.outcome is Outcome.DONE for result in results)


async def test_what_a_worker_holds_again_or_settles_in_time_is_not_lost(case: Case) -> None:
    jobs = await case.enqueue(3)
    async with holding(quick_settings(case.server)) as replica:
        await give_word(case, OURS, for_ms=600_000)
        await case.read(OURS, count=3)
        await scanned_fully(case, 3)
        await drop(case, OURS, acknowledged=jobs[0], journalled=True)
        for job in jobs[1:]:
            await case.client.execute_command(
                "XCLAIM", "orders", "billing", OURS, 0, job, "IDLE", 0, "RETRYCOUNT", 1, "FORCE", "JUSTID"
            )
        await looked_again(case)
        await case.make_overdue(OURS)
        assert sorted(await case.work_off(nothing_left)) == jobs[1:]
        assert replica.errors == []


async def test_what_went_with_a_third_party_consumer_is_reported_as_in_doubt(case: Case) -> None:
    jobs = await case.enqueue(3)
    async with holding(quick_settings(case.server)) as replica:
        await case.read("plain", count=3)
        await scanned_fully(case, 3)
        async with case.client.pipeline() as together:  # no scan comes in between
            together.xack("orders", "billing", jobs[0])
            together.xgroup_delconsumer("orders", "billing", "plain")
            await together.execute()
        await case.wait_for_report(lambda report: report.in_doubt == 3, "it is reported")
        assert ["settled or lost" in line for line in replica.errors] == [True]
        assert await case.pending() == []
        assert ProblemKind.LOST_DELIVERY not in await troubles(case)
    told = await case.events(EventName.LOST_DELIVERY)
    assert [(event.job, event.data["certain"]) for event in told] == [(job, 0) for job in jobs]


@pytest.mark.parametrize("how", ["it leaves", "it is tidied away", "it settles and stays", "its payload is deleted"])
async def test_who_goes_by_itself_loses_nothing(case: Case, how: str) -> None:
    jobs = await case.enqueue(3)
    retention = {"consumer_retention": 0.01} if how == "it is tidied away" else {}
    await case.client.xgroup_createconsumer("orders", "billing", OURS)  # before its word, which is no loss then
    async with holding(quick_settings(case.server, **retention)) as replica:
        await give_word(case, OURS)
        await case.read(OURS, count=3)
        await scanned_fully(case, 3)
        async with case.client.pipeline(transaction=True) as pipeline:
            if how == "its payload is deleted":
                pipeline.xdel("orders", *jobs)
            else:
                pipeline.xack("orders", "billing", *jobs)
            if how == "it leaves":  # as delete_consumer.lua
                pipeline.hdel(case.keys.settings, f"registration:{OURS}")
            if how in ("it leaves", "its payload is deleted"):
                pipeline.xgroup_delconsumer("orders", "billing", OURS)
            await pipeline.execute()
        if how == "it is tidied away":
            await wait_until(lambda: _are_consumers(case, set()), "the silent consumer is deleted")
            await give_word(case, OURS, for_ms=600_000)  # it lives, and joins again as ever
        report = await looked_again(case)
    reported = [LOST_CONSUMER in line for line in replica.errors]
    assert (report.timers, report.in_doubt, reported) == (0, 0, [True] if how == "its payload is deleted" else [])
    assert await case.events(EventName.LOST_DELIVERY) == []
    assert await case.pending() == []


async def scanned_fully(case: Case, pending: int) -> None:
    """Wait until a full scan has found so much pending."""
    await case.wait_for_report(lambda report: report.scan_entries == pending, "a full scan is over")
