from collections.abc import Sequence

import anyio
import pytest
from redis.asyncio import Redis

from tests.conftest import StartProxy
from tests.support.proxy import runs
from tests.support.resp import Request
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import (
    KEYS,
    Holding,
    accept,
    enqueue,
    event_names,
    make_worker,
    number_of,
    pending_of,
    process_of,
    reports_of,
    running,
    wait_for_settled,
)
from workers import Job, Reject, Retry
from workers.loop import settlement
from workers.loop.settlement import GATHER_BATCHES
from workers.protocol.calls.moves import ACK, SETTLE
from workers.protocol.scripts import Script

pytestmark = pytest.mark.anyio

NUMBER_OF_IDS = 6
"""Which argument of ``ack.lua`` says how many entry IDs follow, from 0."""


def acknowledged_by(words: Sequence[bytes]) -> list[bytes]:
    """Return the entries of a call of ``ack.lua``, by the words of its EVALSHA."""
    at = 3 + int(words[2]) + NUMBER_OF_IDS
    return list(words[at + 1 : at + 1 + int(words[at])])


# ---- many in one call


async def test_settlements_gather_during_a_call(server: RedisServer, client: Redis, proxy: StartProxy) -> None:
    await client.script_load(ACK.source)
    through = await proxy(server)
    calls: list[Request] = []

    def note(request: Request) -> bool:
        if runs(ACK)(request):  # others are the heartbeat's, where the machine is slow
            calls.append(request)
        return False

    through.hold_request(note)
    first_call = through.hold_request(runs(ACK))
    ran: list[int] = []

    async def handle(job: Job) -> None:
        ran.append(number_of(job))

    async with running(make_worker(through.url, handle, concurrency=16)) as worker:
        await enqueue(client, 0)
        await first_call.wait()
        await enqueue(client, *range(1, 50))
        await wait_until(lambda: len(ran) == 50, "all jobs have run meanwhile")
        first_call.release()
        await wait_for_settled(worker, 50)

    assert len(calls) == 2
    assert worker.counts.acked == 50


async def test_a_call_settles_no_more_than_the_batch(
    server: RedisServer, client: Redis, proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.script_load(ACK.source)
    through = await proxy(server)
    sizes: list[int] = []

    def note_size(request: Request) -> bool:
        if runs(ACK)(request):
            sizes.append(len(acknowledged_by(request.words)))
        return False

    through.hold_request(note_size)
    await enqueue(client, *range(40))
    monkeypatch.setattr(settlement, "SETTLE_BATCH", 4)
    async with running(make_worker(through.url, accept, concurrency=16)) as worker:
        await wait_for_settled(worker, 40)

    assert (max(sizes), sum(sizes)) == (4, 40)


# ---- deliveries that are not ours any more


@pytest.mark.parametrize(("verdict", "rejected"), [(None, 0), (Retry("again"), 1)])
async def test_of_a_delivery_that_was_taken_away_an_ack_wins_and_any_other_verdict_is_told(
    server: RedisServer, client: Redis, verdict: object, rejected: int
) -> None:
    handler = Holding(verdict)
    worker = make_worker(server.url, handler)
    reports = reports_of(worker, "rejected")
    [job_id] = await enqueue(client, 1)
    async with running(worker):
        await handler.has_started()
        await client.xclaim(KEYS.stream, KEYS.group, "somebody", 0, [job_id])
        handler.gate.set()
        await wait_for_settled(worker, 1)

    assert (worker.counts.acked, worker.counts.rejected, len(reports)) == (1 - rejected, rejected, rejected)
    assert await pending_of(client) == ([(job_id, "somebody", 2)] if rejected else [])


async def test_when_the_group_is_destroyed_settlements_are_rejected_and_work_goes_on(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Holding()
    await enqueue(client, 1)
    async with running(make_worker(server.url, handler, group_start="$", concurrency=1)) as worker:
        await enqueue(client, 2)
        await handler.has_started()
        await client.xgroup_destroy(KEYS.stream, KEYS.group)
        handler.gate.set()
        await wait_for_settled(worker, 1)
        await wait_until(
            lambda: (
                "is created again, jobs in between can be lost or run again: group=orders/billing start=$"
                in caplog.text
            ),
            "the group is there again",
        )
        await enqueue(client, 3)
        await wait_for_settled(worker, 2)

    assert (worker.counts.rejected, worker.counts.acked) == (1, 1)


# ---- replies that are lost


@pytest.mark.parametrize(
    ("verdict", "script", "done"),
    [(None, ACK, "acked"), (Retry("again"), SETTLE, "nacked"), (Reject("never"), SETTLE, "dead_lettered")],
)
async def test_w2_a_call_whose_reply_was_lost_is_sent_again_and_answered_from_the_kept_reply(
    server: RedisServer, client: Redis, proxy: StartProxy, verdict: object, script: Script, done: str
) -> None:
    await client.script_load(script.source)
    through = await proxy(server)
    runs_of_jobs: list[tuple[int, int]] = []

    async def handle(job: Job) -> object:
        runs_of_jobs.append((number_of(job), job.deliveries))
        return verdict if job.deliveries == 1 else None

    await enqueue(client, 1)
    lost = through.drop_reply(runs(script))
    async with running(make_worker(through.url, handle)) as worker:
        await lost.wait()
        await wait_until(lambda: getattr(worker.counts, done) == 1, "the settlement was sent again")
        await wait_until(lambda: is_clean(client), "nothing is left to do")

    expected = [(1, 1), (1, 2)] if isinstance(verdict, Retry) else [(1, 1)]
    assert (runs_of_jobs, worker.counts.rejected) == (expected, 0)
    assert await client.xlen(KEYS.dead) == isinstance(verdict, Reject)


async def is_clean(client: Redis) -> bool:
    [group] = await client.xinfo_groups(KEYS.stream)
    last: bytes = (await client.xinfo_stream(KEYS.stream))["last-generated-id"]
    return bool(group["pending"] == 0 and group["last-delivered-id"] == last)


async def test_a_denied_call_settles_nothing_and_a_vanished_job_is_rejected(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    await client.execute_command("ACL", "SETUSER", "w", "reset", "on", ">p", "~*", "&*", "+@all")
    worker = make_worker(server.url.replace("//", "//w:p@"), handler, visibility_timeout=600, recovery="embedded")
    errors = reports_of(worker, "error")
    await enqueue(client, 1)
    try:
        async with running(worker):
            await handler.has_started()
            await client.execute_command("ACL", "SETUSER", "w", "-evalsha", "-eval")
            handler.gate.set()
            await wait_until(lambda: errors, "the call is denied")
            await client.xgroup_delconsumer(KEYS.stream, KEYS.group, worker.consumer)
            await client.execute_command("ACL", "SETUSER", "w", "+evalsha", "+eval")
            await wait_for_settled(worker, 1)
    finally:
        await client.execute_command("ACL", "DELUSER", "w")
    assert (worker.counts.acked, worker.counts.rejected) == (0, 1)


async def test_w2_an_unanswered_call_is_sent_again_first(server: RedisServer, client: Redis, proxy: StartProxy) -> None:
    """Acks come first otherwise."""
    for script in (ACK, SETTLE):
        await client.script_load(script.source)
    through, go = await proxy(server), anyio.Event()

    async def handle(job: Job) -> None:
        if number_of(job) == 1:
            raise Reject("never")
        await go.wait()

    sent = through.hold_request(runs(SETTLE))
    await enqueue(client, 1, 2)
    async with running(make_worker(through.url, handle)) as worker:
        await sent.wait()
        go.set()
        await wait_until(lambda: worker.process and worker.process._settlements._gathered == 2, "both have gathered")
        acks = through.hold_request(runs(ACK))
        await through.disconnect()
        await wait_until(lambda: worker.counts.dead_lettered == 1, "the call was sent again")
        await acks.wait()
        acks.release()
        await wait_for_settled(worker, 2)

    assert (worker.counts.acked, worker.counts.rejected) == (1, 0)


async def test_w2_a_repeated_call_has_no_later_verdict(server: RedisServer, client: Redis, proxy: StartProxy) -> None:
    await client.script_load(ACK.source)
    through, go = await proxy(server), anyio.Event()

    async def handle(job: Job) -> None:
        if number_of(job) == 2:
            await go.wait()

    sent = through.hold_request(runs(ACK))
    _, second = await enqueue(client, 1, 2)
    async with running(make_worker(through.url, handle)) as worker:
        await sent.wait()  # the first verdict, which is not answered
        await client.xack(KEYS.stream, KEYS.group, second)
        go.set()
        await wait_until(lambda: worker.process and worker.process._settlements._gathered == 2, "both have gathered")
        await through.disconnect()
        await wait_for_settled(worker, 2)

    assert (worker.counts.acked, worker.counts.rejected) == (1, 1)
    assert sorted(await event_names(client)) == ["acked", "rejected"]


async def test_verdicts_that_gather_in_an_outage_are_bounded_and_settled_after_it(
    server: RedisServer, client: Redis, proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.script_load(ACK.source)
    through = await proxy(server)
    gathered = GATHER_BATCHES * 2
    ran: list[int] = []

    async def handle(job: Job) -> None:
        ran.append(number_of(job))

    held = through.hold_request(runs(ACK))
    await enqueue(client, *range(100))
    monkeypatch.setattr(settlement, "SETTLE_BATCH", 2)
    async with running(make_worker(through.url, handle, concurrency=10)) as worker:
        await held.wait()
        # So many results may gather. Then no job begins, and ten more wait for their slots.
        in_hand = process_of(worker).in_hand
        await wait_until(lambda: len(in_hand()) == gathered + 10, "the slots are full")
        assert len(ran) == gathered
        assert len(await pending_of(client)) == gathered + 10
        await through.cut()
        await through.mend()
        await wait_for_settled(worker, 100)

    assert (sorted(ran), worker.counts.acked, worker.counts.rejected) == (list(range(100)), 100, 0)


# ---- one bad entry


async def test_a_job_that_cannot_be_copied_is_held_and_its_batch_is_served(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(job: Job) -> None:
        if b"big" in job.fields:
            raise Retry("cannot be copied")

    flat = [part for number in range(10_100) for part in (b"f%d" % number, b"x")]
    await enqueue(client, *range(20))
    await client.execute_command("XADD", KEYS.stream, "*", "big", "1", *flat)
    await enqueue(client, *range(20, 40))

    async with running(make_worker(server.url, handle)) as worker:
        await wait_for_settled(worker, 41)

    assert (worker.counts.acked, worker.counts.held) == (40, 1)
    assert len(await pending_of(client)) == 1
    assert "too many fields" in caplog.text
