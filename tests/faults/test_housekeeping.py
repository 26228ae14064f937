"""Events of a group while a leader watches. Groups come and go, entries are deleted, consumers fall silent."""

from functools import partial
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from reaper.operations.judgement import Trouble, judge
from reaper.operations.snapshot import take_snapshot
from reaper.recovery.housekeeping import Housekeeping
from reaper.replicas import GroupReport
from tests.conftest import StartProxy
from tests.faults.reapers import VISIBILITY_MS, Case, leading, nothing_left, quick_settings
from tests.faults.scene import Handler, running_worker
from tests.support.proxy import command, runs
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.calls.upkeep import KEEP_HOUSE, Kept
from workers.protocol.events import EventName, encode_data
from workers.protocol.keys import RESTORED_CONSUMER, group_keys, namespace_keys
from workers.protocol.messages import text
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

SELDOM = 60
"""Seconds between full scans of a leader that is to notice by other means."""


@pytest.fixture
async def case(server: RedisServer, client: Redis) -> Case:
    return await Case.prepared(server, client)


# ---- groups


async def test_a_group_that_is_created_later_is_picked_up(server: RedisServer, client: Redis) -> None:
    case = Case(server, client, group_keys("orders", "billing"))
    async with leading(quick_settings(server)):
        await case.wait_for_report(lambda report: report.refusal == "no_group", "the group is missed")
        await client.xgroup_create("orders", "billing", "0", mkstream=True)
        jobs = await case.stalled(3)
        assert sorted(await case.work_off(nothing_left)) == jobs
        await case.wait_for_report(lambda report: not report.refusal, "the group is served")
    assert set(await case.recovered()) == set(jobs)


async def test_a_group_that_is_destroyed_stays_so_unless_asked_otherwise(case: Case) -> None:
    async with leading(quick_settings(case.server)):
        await case.enqueue(3)
        await case.read()
        await case.wait_for_report(lambda report: report.timers == 3, "the deliveries are watched")
        await case.client.xgroup_destroy("orders", "billing")
        await case.wait_for_report(lambda report: report.refusal == "no_group", "the group is missed")
    assert await case.client.xinfo_groups("orders") == []


@pytest.mark.parametrize("redelivery", ["stream", "retry-stream"])
async def test_a_destroyed_group_is_recreated_with_what_was_pending_and_what_was_ready(
    case: Case, redelivery: str
) -> None:
    settings = quick_settings(case.server, recreate_groups=True, redelivery=redelivery)
    jobs = await case.enqueue(6)
    async with leading(settings):
        await case.read(count=4)
        await wait_until(lambda: _remembers(case, jobs[3]), "the group's position is remembered")
        await case.wait_for_report(lambda report: report.timers == 4, "the deliveries are watched")
        await case.client.xgroup_destroy("orders", "billing")
        await wait_until(case.recovered, "what was pending is recovered")
        assert sorted(await case.work_off(nothing_left)) == jobs
    assert {job: len(tokens) for job, tokens in (await case.recovered()).items()} == dict.fromkeys(jobs[:4], 1)
    assert await case.violations() == []


@pytest.mark.parametrize("redelivery", ["stream", "retry-stream"])
async def test_what_a_group_held_that_a_worker_makes_again_before_the_leader_sees_it_is_put_back(
    case: Case, proxy: StartProxy, redelivery: str
) -> None:
    through = await proxy(case.server)
    settings = quick_settings(
        case.server, recreate_groups=True, redelivery=redelivery, redis_url=through.url, full_scan_interval=0.1
    )
    jobs = await case.enqueue(6)
    async with leading(settings):
        await case.read(count=4)
        await wait_until(lambda: _remembers(case, jobs[3]), "the group's position is remembered")
        await case.wait_for_report(lambda report: report.timers == 4, "the deliveries are watched")
        scan = through.hold_requests(command("xpending"))
        await scan.wait()
        await case.client.xgroup_destroy("orders", "billing")
        handler = Handler()
        async with running_worker(case.server.url, handler):
            await handler.has_started(2)
            scan.release()
            await wait_until(lambda: put_back(case), "what was pending is there again")
            await case.taken_from(RESTORED_CONSUMER)
            await handler.has_started(6)
    assert {start.job for start in handler.starts} == set(jobs)
    assert {job: len(tokens) for job, tokens in (await case.recovered()).items()} == dict.fromkeys(jobs[:4], 1)


async def put_back(case: Case) -> bool:
    """Tell whether the leader has put back what it watched, and perhaps recovered it."""
    return len(await case.recovered()) + sum(owner == RESTORED_CONSUMER for _, owner, _ in await case.pending()) >= 4


async def test_what_falls_due_while_the_group_is_gone_is_put_back_too(case: Case, proxy: StartProxy) -> None:
    through = await proxy(case.server)
    settings = quick_settings(case.server, recreate_groups=True, redis_url=through.url, full_scan_interval=SELDOM)
    async with leading(settings):
        recovery = through.hold_requests(runs(load_script("reaper", "recover_entries")))
        jobs = await case.stalled(3)
        await case.wait_for_report(lambda report: report.timers == 3, "the deliveries are watched")
        await case.client.hset(case.keys.agreement, "last_id", jobs[-1])  # as after the next full scan
        await recovery.wait()
        scan = through.hold_requests(command("xpending"))
        await scan.wait()
        await case.client.xgroup_destroy("orders", "billing")
        recovery.release()
        # The leader hears first from its recovery that it cannot act, and then that the group is gone.
        await case.wait_for_report(lambda report: "recover" in report.error, "the recovery failed")
        scan.release()
        await wait_until(case.recovered, "what was due is recovered")
        assert sorted(await case.work_off(nothing_left)) == jobs
    assert await case.violations() == []


async def _remembers(case: Case, position: str) -> bool:
    return await case.client.hget(case.keys.agreement, "last_id") == position.encode()


# ---- made again by a stranger


async def remake(case: Case, start: str) -> None:
    """Destroy the group and create it again, as an operator or a foreign worker does."""
    async with case.client.pipeline(transaction=True) as pipeline:
        pipeline.xgroup_destroy("orders", "billing")
        pipeline.xgroup_create("orders", "billing", start)
        await pipeline.execute()


async def _is_marked(case: Case) -> bool:
    return await case.client.hexists(case.keys.agreement, "marked")


async def test_what_a_group_held_that_a_stranger_has_made_again_is_put_back(case: Case) -> None:
    jobs = await case.enqueue(4)
    async with leading(quick_settings(case.server, recreate_groups=True)):
        await case.read(count=4)
        await case.wait_for_report(lambda report: report.timers == 4, "the deliveries are watched")
        await wait_until(lambda: _is_marked(case), "the group will be known again")
        await remake(case, "$")
        report = await case.wait_for_report(lambda report: report.put_back == 4, "what was pending is put back")
        assert (report.dropped, report.groups_lost) == (0, 0)
        assert sorted(await case.work_off(nothing_left)) == jobs
    assert await case.violations() == []


async def test_what_a_stranger_made_vanish_is_put_back_also_where_the_reply_that_told_of_it_was_lost(
    case: Case, proxy: StartProxy
) -> None:
    through = await proxy(case.server)
    jobs = await case.enqueue(4)
    async with leading(quick_settings(case.server, redis_url=through.url, recreate_groups=True)):
        await case.read(count=4)
        await case.wait_for_report(lambda report: report.timers == 4, "the deliveries are watched")
        await wait_until(lambda: _is_marked(case), "the group will be known again")
        scanning = through.hold_request(command("XPENDING"))
        await scanning.wait()
        lost = through.drop_reply(runs(KEEP_HOUSE))
        await remake(case, "$")
        scanning.release()  # it finds that all is gone
        await lost.wait()
        await case.wait_for_report(lambda report: report.put_back == 4, "what was pending is put back")
        assert sorted(await case.work_off(nothing_left)) == jobs
    assert await case.violations() == []


@pytest.mark.parametrize("journalled", [True, False])
async def test_what_the_journal_names_as_settled_is_not_put_back_into_a_group_that_was_made_again(
    case: Case, journalled: bool
) -> None:
    """It was pending when the leader scanned last, and would run once more (seed 6000721 with reloads)."""
    jobs = await case.enqueue(3)
    async with leading(quick_settings(case.server, recreate_groups=True)):
        await case.read(OURS, count=3)
        await scanned_fully(case, 3)
        await wait_until(lambda: _is_marked(case), "the group will be known again")
        async with case.client.pipeline(transaction=True) as pipeline:
            settle(pipeline, case, OURS, jobs[0], journalled=journalled)
            pipeline.xgroup_destroy("orders", "billing")
            pipeline.xgroup_create("orders", "billing", "$")
            await pipeline.execute()
        back = jobs[1:] if journalled else jobs
        await case.wait_for_report(lambda report: report.put_back == len(back), "what was pending is put back")
        await case.make_overdue(RESTORED_CONSUMER)
        assert sorted(await case.work_off(nothing_left)) == back


async def test_what_a_stranger_made_vanish_and_nobody_puts_back_makes_the_service_degraded(case: Case) -> None:
    await case.enqueue(4)
    async with leading(quick_settings(case.server)):
        await case.read(count=4)
        await case.wait_for_report(lambda report: report.timers == 4, "the deliveries are watched")
        await wait_until(lambda: _is_marked(case), "the group will be known again")
        await remake(case, "$")
        await case.wait_for_report(lambda report: report.dropped == 4, "the loss is counted")
        await wait_until(lambda: is_told_as_lost(case), "the service is degraded")


async def test_where_all_is_delivered_anew_nothing_is_lost_and_nothing_put_back(case: Case) -> None:
    jobs = await case.enqueue(4)
    async with leading(quick_settings(case.server, recreate_groups=True)):
        await case.read(count=4)
        await case.wait_for_report(lambda report: report.timers == 4, "the deliveries are watched")
        await wait_until(lambda: _is_marked(case), "the group will be known again")
        await remake(case, "0")
        await case.wait_for_report(lambda report: report.timers == 0, "the leader has looked")
        assert sorted(await case.work_off(nothing_left)) == jobs
        report = await case.wait_for_report(lambda report: report.last_full_scan_ms > 0, "it goes on")
    assert (report.put_back, report.dropped) == (0, 0)
    assert await case.violations() == []


@pytest.mark.parametrize("again", ["by a stranger", "by one of ours"])
async def test_a_group_that_was_lost_while_nobody_led_is_told_of_and_no_first_group_is(case: Case, again: str) -> None:
    await case.enqueue(4)
    async with leading(quick_settings(case.server)):
        await case.read(count=4)
        await case.wait_for_report(lambda report: report.timers == 4, "the deliveries are watched")
        await wait_until(lambda: _is_marked(case), "the group will be known again")
        assert not await is_told_as_lost(case)
    await case.client.xgroup_destroy("orders", "billing")
    if again == "by a stranger":
        await case.client.xgroup_create("orders", "billing", "$")
    else:
        async with running_worker(case.server.url, Handler()):
            pass
    async with leading(quick_settings(case.server), "error") as leader:
        await case.wait_for_report(lambda report: report.groups_lost == 1, "it is told")
        await wait_until(lambda: is_told_as_lost(case), "the service is degraded")
        assert leader.errors() == ["group_destroyed"]


async def test_a_mark_that_is_deleted_alone_is_no_other_group(case: Case) -> None:
    jobs = await case.stalled(1)
    await case.client.hset(case.keys.agreement, "paused", "1")  # it stays pending
    async with leading(quick_settings(case.server, recreate_groups=True)):
        await wait_until(lambda: _is_marked(case), "the group will be known again")
        await case.client.xgroup_delconsumer("orders", "billing", RESTORED_CONSUMER)
        await wait_until(lambda: _has_mark(case), "it is marked again")
        assert not await case.client.hexists(case.keys.agreement, "made")
    assert [entry for entry, _, _ in await case.pending()] == jobs


async def test_what_was_put_back_is_put_back_again_where_our_consumer_is_deleted(case: Case) -> None:
    jobs = await case.enqueue(3)
    await case.read(OURS, count=3)
    [old] = await case.stalled(1)  # so that the group is known to be the one that it was
    await case.client.hset(case.keys.agreement, "paused", "1")  # the returned jobs wait
    async with leading(quick_settings(case.server)):
        await give_word(case, OURS)
        await scanned_fully(case, 4)
        await drop(case, OURS, acknowledged=jobs[1], journalled=True)
        await case.wait_for_report(lambda report: report.put_back == 2, "what it held is put back")
        await wait_until(lambda: _is_noted(case), "it is known who holds it")
        await scanned_fully(case, 3)
        await drop(case, RESTORED_CONSUMER, acknowledged=jobs[2], journalled=True)
        await case.wait_for_report(lambda report: report.put_back == 3, "what was not settled is put back again")
        await case.client.hdel(case.keys.agreement, "paused")
        await case.make_overdue(RESTORED_CONSUMER)
        assert sorted(await case.work_off(nothing_left)) == sorted([jobs[0], old])


async def _is_noted(case: Case) -> bool:
    return bool(await case.client.hexists(case.keys.agreement, f"holds:{RESTORED_CONSUMER}"))


async def _has_mark(case: Case) -> bool:
    consumers: Any = await case.client.xinfo_consumers("orders", "billing")
    return RESTORED_CONSUMER in {text(consumer["name"]) for consumer in consumers}


async def is_told_as_lost(case: Case) -> bool:
    """Tell whether the service is degraded since jobs are gone."""
    problems = judge(await take_snapshot(case.client, namespace_keys("reaper")))
    return Trouble.DROPPED in {problem.trouble for problem in problems}


# ---- the retry stream


async def read_retries(case: Case) -> list[str]:
    """Read both streams as a worker does. Fails without the group. Returns jobs of the retry stream."""
    reply: Any = await case.client.execute_command(
        "XREADGROUP", "GROUP", "billing", "w1", "STREAMS", "orders", case.keys.retry, ">", ">"
    )
    return [
        text(entry_id)
        for stream, entries in reply or ()
        if stream == case.keys.retry.encode()
        for entry_id, _ in entries
    ]


async def _retries_can_be_read(case: Case) -> bool:
    groups: Any = await case.client.xinfo_groups(case.keys.retry) if await case.client.exists(case.keys.retry) else []
    return [group["name"] for group in groups] == [b"billing"]


async def test_a_retry_stream_that_is_deleted_is_made_again(case: Case) -> None:
    settings = quick_settings(case.server, redelivery="retry-stream", full_scan_interval=SELDOM)
    async with leading(settings):
        await wait_until(lambda: _retries_can_be_read(case), "the retry stream is made")
        await case.wait_for_report(lambda report: report.last_full_scan_ms > 0, "it is watched")
        await case.client.delete(case.keys.retry)
        await wait_until(lambda: _retries_can_be_read(case), "the retry stream is made again")
        jobs = await case.stalled(3)
        assert sorted(await case.work_off(nothing_left)) == jobs
    assert await case.violations() == []


async def test_a_job_recovered_into_a_retry_stream_that_was_deleted_can_be_read(case: Case) -> None:
    settings = quick_settings(case.server, redelivery="retry-stream", full_scan_interval=SELDOM)
    async with leading(settings):
        await wait_until(lambda: _retries_can_be_read(case), "the retry stream is made")
        jobs = await case.enqueue(3)
        await case.read()
        await case.wait_for_report(lambda report: report.timers == 3, "the deliveries are watched")
        await case.make_overdue()  # which is seen by the full scan that a missing group asks for
        async with case.client.pipeline(transaction=True) as pipeline:
            # The stream is there again before the leader has seen that it was not, as by a copy that it has written.
            pipeline.delete(case.keys.retry)
            pipeline.xadd(case.keys.retry, {"n": "by hand"})
            by_hand = text((await pipeline.execute())[1])
        await wait_until(lambda: _retries_can_be_read(case), "the group is made again")
        assert sorted(await case.work_off(nothing_left)) == sorted([*jobs, by_hand])
    case.enqueued[by_hand] = [(b"n", b"by hand")]
    assert await case.violations() == []


async def test_with_policy_stream_what_is_pending_in_an_old_retry_stream_is_recovered(case: Case) -> None:
    (job,) = await case.stalled(1)
    async with leading(quick_settings(case.server, redelivery="retry-stream")):
        await wait_until(case.recovered, "the job is in the retry stream")
    (copy,) = await case.read(source=case.keys.retry)
    await case.stall(copy, source=case.keys.retry)
    async with leading(quick_settings(case.server, max_deliveries=5)):
        assert await case.work_off(nothing_left) == [job]
    assert (await case.client.xlen(case.keys.retry), await case.violations()) == (0, [])


# ---- entries


async def test_an_entry_deleted_while_it_was_pending_is_acknowledged_and_told_of(case: Case) -> None:
    jobs = await case.stalled(3)
    await case.client.xdel("orders", jobs[1])
    async with leading(quick_settings(case.server), "error", "recovered") as leader:
        assert await case.work_off(nothing_left) == [jobs[0], jobs[2]]
        await wait_until(leader.errors, "the loss is reported")
    assert (leader.errors(), await _lost_payloads(case)) == (["lost_payload"], 1)
    (lost,) = await case.events(EventName.LOST_PAYLOAD)
    assert (lost.job, lost.data["entry"], lost.data["consumer"]) == (jobs[1], jobs[1], "w1")
    assert await case.violations() == []


async def _lost_payloads(case: Case) -> int:
    return int(await case.client.hget(case.keys.agreement, "lost_payload") or 0)


async def _all_are_lost(case: Case) -> bool:
    return await _lost_payloads(case) == 1_000


async def test_a_stream_trimmed_under_its_pending_entries_is_swept_once(case: Case) -> None:
    await case.stalled(1_000)
    await case.client.xtrim("orders", maxlen=0, approximate=False)
    async with leading(quick_settings(case.server)):
        await wait_until(lambda: _all_are_lost(case), "all losses are counted")
        await case.wait_for_report(lambda report: report.timers == 0, "no timer is left")
    assert len(await case.events(EventName.LOST_PAYLOAD)) == 1_000
    assert await case.violations(finished=True) == []


# ---- consumers


async def test_silent_consumers_that_hold_nothing_are_deleted_if_asked_to(case: Case) -> None:
    await case.enqueue(2)
    (held,) = await case.read("holds one", count=1)
    (done,) = await case.read("holds nothing", count=1)
    await case.client.xack("orders", "billing", done)
    settings = {"full_scan_interval": 0.1}
    async with leading(quick_settings(case.server, **settings)):
        await case.wait_for_report(lambda report: report.last_full_scan_ms > 0, "a full scan is over")
        assert await _consumers(case) == {"holds one", "holds nothing"}
    async with leading(quick_settings(case.server, consumer_retention=0.2, **settings)):
        await wait_until(lambda: _are_consumers(case, {"holds one"}), "the silent consumer is deleted")
    assert await case.pending() == [(held, "holds one", 1)]


async def _consumers(case: Case) -> set[str]:
    consumers: Any = await case.client.xinfo_consumers("orders", "billing")
    return {text(consumer["name"]) for consumer in consumers} - {RESTORED_CONSUMER}


async def _are_consumers(case: Case, names: set[str]) -> bool:
    return await _consumers(case) == names


# ---- deleted consumers with deliveries

OURS = "host.0123456789ab"
"""As workers of ours name their consumers."""


async def give_word(case: Case, consumer: str, *, for_ms: int = -60_000) -> None:
    """Join as a worker of ours does. Its registration lasts so long, or ended a minute ago for a dead one."""
    seconds, _ = await case.client.time()
    until_ms = seconds * 1_000 + for_ms
    await case.client.hset(case.keys.agreement, f"member:{consumer}", f"1,{VISIBILITY_MS},3,{until_ms},")


def settle(pipeline: Any, case: Case, consumer: str, acknowledged: str, *, journalled: bool) -> None:
    """Let ``consumer`` settle one delivery."""
    pipeline.xack("orders", "billing", acknowledged)
    if journalled:
        data = encode_data({"group": "billing", "consumer": consumer, "mode": "reaper", "entry": acknowledged})
        pipeline.xadd(case.keys.journal, {"event": "acked", "job": acknowledged, "data": data})


async def drop(case: Case, consumer: str, *, acknowledged: str, journalled: bool) -> None:
    """Let ``consumer`` settle one delivery, and delete it with the others, before a leader looks."""
    async with case.client.pipeline(transaction=True) as pipeline:
        settle(pipeline, case, consumer, acknowledged, journalled=journalled)
        pipeline.xgroup_delconsumer("orders", "billing", consumer)
        await pipeline.execute()


def _was_later(moment_ms: int, report: GroupReport) -> bool:
    return report.last_full_scan_ms > moment_ms


async def looked_again(case: Case) -> GroupReport:
    """Wait until two full scans have begun and ended. Returns the leader's report then."""
    report = await case.wait_for_report(lambda report: report.last_full_scan_ms > 0, "a full scan is over")
    for _ in range(3):
        is_newer = partial(_was_later, report.last_full_scan_ms)
        report = await case.wait_for_report(is_newer, "the leader looks again")
    return report


@pytest.mark.parametrize("redelivery", ["stream", "retry-stream"])
async def test_what_a_dead_worker_of_ours_held_whose_consumer_is_deleted_is_put_back(
    case: Case, redelivery: str
) -> None:
    jobs = await case.enqueue(4)
    async with leading(quick_settings(case.server, redelivery=redelivery), "error") as leader:
        await give_word(case, OURS)
        await case.read(OURS, count=3)
        await case.read("another", count=1)
        await scanned_fully(case, 4)
        await case.client.xgroup_delconsumer("orders", "billing", OURS)
        report = await case.wait_for_report(lambda report: report.put_back == 3, "what it held is put back")
        await case.make_overdue("another")
        assert sorted(await case.work_off(nothing_left)) == jobs
        assert leader.errors() == ["lost_delivery"]
    assert report.in_doubt == 0
    told = await case.events(EventName.LOST_DELIVERY)
    assert [(event.job, event.data["consumer"], event.data["put_back"]) for event in told] == [
        (job, OURS, True) for job in jobs[:3]
    ]
    assert await case.violations() == []


@pytest.mark.parametrize("redelivery", ["stream", "retry-stream"])
@pytest.mark.parametrize(("consumer", "put_back", "in_doubt"), [(OURS, 3, 0), ("foreign", 0, 3)])
async def test_what_was_dropped_before_settings_are_reloaded_is_known_to_the_watch_that_follows(
    case: Case, redelivery: str, consumer: str, put_back: int, in_doubt: int
) -> None:
    """Full scans alone see it, and the one after the reload is the first of its watch (seed 4201298)."""
    changes = {"redelivery": redelivery, "full_scan_interval": SELDOM}
    jobs = await case.enqueue(3)
    if consumer == OURS:
        await give_word(case, OURS)
    await case.read(consumer, count=3)
    async with leading(quick_settings(case.server, **changes), "error") as leader:
        await scanned_fully(case, 3)
        await case.client.xgroup_delconsumer("orders", "billing", consumer)
        for limit in (7, 8):  # the second one before the first has scanned anything, perhaps
            leader.reaper.reload(quick_settings(case.server, max_deliveries=limit, **changes))
        report = await case.wait_for_report(lambda report: report.put_back + report.in_doubt == 3, "it is told")
        assert sorted(await case.work_off(nothing_left)) == (jobs if put_back else [])
        assert leader.errors() == ["lost_delivery"]
    assert (report.put_back, report.in_doubt) == (put_back, in_doubt)


@pytest.mark.parametrize(("consumer", "put_back", "in_doubt"), [(OURS, 3, 0), ("foreign", 0, 3)])
async def test_what_was_dropped_before_settings_are_reloaded_in_the_first_scan_is_known_too(
    case: Case, monkeypatch: pytest.MonkeyPatch, consumer: str, put_back: int, in_doubt: int
) -> None:
    """It has seen what is pending, and not yet done what follows from that."""
    run, is_under_way = Housekeeping.run, anyio.Event()

    async def held_up(house: Housekeeping) -> Kept:
        if not is_under_way.is_set():
            is_under_way.set()
            await anyio.sleep_forever()
        return await run(house)

    monkeypatch.setattr(Housekeeping, "run", held_up)
    changes = {"full_scan_interval": SELDOM}
    jobs = await case.enqueue(3)
    if consumer == OURS:
        await give_word(case, OURS)
    await case.read(consumer, count=3)
    async with leading(quick_settings(case.server, **changes), "error") as leader:
        await is_under_way.wait()
        await case.client.xgroup_delconsumer("orders", "billing", consumer)
        leader.reaper.reload(quick_settings(case.server, max_deliveries=7, **changes))
        report = await case.wait_for_report(lambda report: report.put_back + report.in_doubt == 3, "it is told")
        assert sorted(await case.work_off(nothing_left)) == (jobs if put_back else [])
        assert leader.errors() == ["lost_delivery"]
    assert (report.put_back, report.in_doubt) == (put_back, in_doubt)


async def test_what_a_group_held_that_is_destroyed_before_settings_are_reloaded_is_put_back(case: Case) -> None:
    changes = {"recreate_groups": True, "full_scan_interval": SELDOM}
    jobs = await case.enqueue(3)
    await case.read(OURS, count=3)
    async with leading(quick_settings(case.server, **changes)) as leader:
        await scanned_fully(case, 3)
        async with case.client.pipeline(transaction=True) as pipeline:
            pipeline.xgroup_destroy("orders", "billing")
            pipeline.xgroup_create("orders", "billing", "$")
            await pipeline.execute()
        leader.reaper.reload(quick_settings(case.server, max_deliveries=7, **changes))
        report = await case.wait_for_report(lambda report: report.put_back == 3, "what it held is put back")
        await case.make_overdue(RESTORED_CONSUMER)
        assert sorted(await case.work_off(nothing_left)) == jobs
    assert report.dropped == 0


async def test_what_a_dead_worker_has_settled_before_does_not_run_again_if_it_is_journalled(case: Case) -> None:
    jobs = await case.enqueue(3)
    async with leading(quick_settings(case.server)):
        await give_word(case, OURS)
        await case.read(OURS, count=3)
        await scanned_fully(case, 3)
        await drop(case, OURS, acknowledged=jobs[1], journalled=True)
        report = await case.wait_for_report(lambda report: report.put_back > 0, "what it held is put back")
        assert report.put_back == 2
        assert sorted(await case.work_off(nothing_left)) == [jobs[0], jobs[2]]
    assert [event.job for event in await case.events(EventName.LOST_DELIVERY)] == [jobs[0], jobs[2]]


async def test_what_may_still_run_is_put_back_when_the_word_of_its_worker_has_ended(case: Case) -> None:
    jobs = await case.enqueue(3)
    async with leading(quick_settings(case.server)):
        await give_word(case, OURS, for_ms=600_000)
        await case.read(OURS, count=3)
        await scanned_fully(case, 3)
        await drop(case, OURS, acknowledged=jobs[0], journalled=True)
        report = await looked_again(case)
        assert (report.put_back, report.in_doubt, await case.pending()) == (0, 0, [])
        await case.client.execute_command(  # the worker holds again one of the two that it runs, and dies
            "XCLAIM", "orders", "billing", OURS, 0, jobs[1], "IDLE", 0, "RETRYCOUNT", 1, "FORCE", "JUSTID"
        )
        await looked_again(case)
        await give_word(case, OURS)
        await case.wait_for_report(lambda report: report.put_back == 1, "the other one is put back")
        await case.make_overdue(OURS)
        assert sorted(await case.work_off(nothing_left)) == [jobs[1], jobs[2]]


@pytest.mark.parametrize("redelivery", ["stream", "retry-stream"])
async def test_what_waits_for_a_word_is_known_to_the_leader_that_follows(case: Case, redelivery: str) -> None:
    jobs = await case.enqueue(3)
    async with leading(quick_settings(case.server, redelivery=redelivery)):
        await give_word(case, OURS, for_ms=600_000)
        await case.read(OURS, count=3)
        await scanned_fully(case, 3)
        await drop(case, OURS, acknowledged=jobs[0], journalled=True)
        await looked_again(case)
    await give_word(case, OURS)  # its worker has died, before it held again what it ran
    async with leading(quick_settings(case.server, redelivery=redelivery)):
        await case.wait_for_report(lambda report: report.put_back == 2, "what it held is put back")
        assert sorted(await case.work_off(nothing_left)) == jobs[1:]
        await looked_again(case)
    fields: Any = await case.client.hkeys(case.keys.agreement)
    assert not [field for field in fields if field.startswith(b"dropped")]


async def test_what_a_worker_settles_that_lives_on_does_not_run_again_with_or_without_a_journal(case: Case) -> None:
    jobs = await case.enqueue(2)
    async with leading(quick_settings(case.server), "error") as leader:
        await give_word(case, OURS, for_ms=600_000)
        await case.read(OURS, count=2)
        await scanned_fully(case, 2)
        await drop(case, OURS, acknowledged=jobs[0], journalled=False)
        await looked_again(case)
        for renewed_ms in (601_000, 603_000 + VISIBILITY_MS):  # it has beaten meanwhile, and settled the second
            await give_word(case, OURS, for_ms=renewed_ms)
            await looked_again(case)
        await give_word(case, OURS)  # much later it dies
        report = await looked_again(case)
    assert (report.put_back, report.in_doubt, leader.errors(), await case.pending()) == (0, 0, [], [])


async def test_what_went_with_a_foreign_consumer_is_told_and_nothing_that_was_acknowledged_runs_again(
    case: Case,
) -> None:
    jobs = await case.enqueue(3)
    async with leading(quick_settings(case.server), "error") as leader:
        await case.read("plain", count=3)
        await scanned_fully(case, 3)
        await case.client.xack("orders", "billing", jobs[0])
        await case.client.xgroup_delconsumer("orders", "billing", "plain")
        report = await case.wait_for_report(lambda report: report.in_doubt > 0, "it is told")
        assert leader.errors() == ["lost_delivery"]
        assert await case.pending() == []
    assert (report.in_doubt, report.put_back) == (3, 0)
    told = await case.events(EventName.LOST_DELIVERY)
    assert [(event.job, event.data["put_back"]) for event in told] == [(job, False) for job in jobs]


@pytest.mark.parametrize("how", ["it leaves", "it is tidied away", "it settles and stays", "its payload is deleted"])
async def test_who_goes_by_itself_loses_nothing(case: Case, how: str) -> None:
    jobs = await case.enqueue(3)
    retention = {"consumer_retention": 0.01} if how == "it is tidied away" else {}
    async with leading(quick_settings(case.server, **retention), "error") as leader:
        await give_word(case, OURS)
        await case.read(OURS, count=3)
        await scanned_fully(case, 3)
        async with case.client.pipeline(transaction=True) as pipeline:
            if how == "its payload is deleted":
                pipeline.xdel("orders", *jobs)
            else:
                pipeline.xack("orders", "billing", *jobs)
            if how == "it leaves":  # as delete_consumer.lua
                pipeline.hdel(case.keys.agreement, f"member:{OURS}")
            if how in ("it leaves", "its payload is deleted"):
                pipeline.xgroup_delconsumer("orders", "billing", OURS)
            await pipeline.execute()
        if how == "it is tidied away":
            await wait_until(lambda: _are_consumers(case, set()), "the silent consumer is deleted")
            await give_word(case, OURS)  # it lives, and joins again as ever
        seconds, _ = await case.client.time()
        report = await case.wait_for_report(
            lambda report: report.timers == 0 and report.last_full_scan_ms > (seconds + 2) * 1_000,
            "the leader has looked",
        )
    assert (report.put_back, report.in_doubt, leader.errors()) == (0, 0, [])
    assert await case.pending() == []


async def scanned_fully(case: Case, pending: int) -> None:
    """Wait until a full scan has found so much pending."""
    await case.wait_for_report(lambda report: report.scan_entries == pending, "a full scan is over")
