"""The consumer of a live worker, or its group, is deleted. Its running jobs are not cancelled, and are settled once."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from reaper.drill.history import read_events
from tests.conftest import StartProxy
from tests.support.patience import PATIENCE_S
from tests.support.proxy import runs
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.extending import extending
from tests.workers.scene import (
    KEYS,
    Holding,
    enqueue,
    event_names,
    make_worker,
    number_of,
    pending_of,
    process_of,
    running,
)
from workers import Job, Worker
from workers.loop.heartbeat import Heartbeat
from workers.loop.in_flight import Delivery, Interruption
from workers.protocol.calls.moves import ACK, HeartbeatAnswer, Moves
from workers.runtime.clock import monotonic

pytestmark = pytest.mark.anyio

SETTINGS: dict[str, Any] = {
    "visibility_timeout": 3_600,
    "redelivery": "stream",
    "max_deliveries": 3,
    "concurrency": 3,
}
"""No slot to spare: a worker that reads makes its consumer again."""


CASES = pytest.mark.parametrize(
    "changes",
    [{}, {"max_deliveries": 1}],
    ids=["stream", "last-delivery"],
)
"""Each script of ours that takes a delivery from the stream deletes its entry, so what is there was dropped."""


async def vanish(client: Redis, worker: Worker, how: str) -> None:
    if how == "consumer":
        await client.xgroup_delconsumer(KEYS.stream, KEYS.group, worker.consumer)
    else:
        await client.xgroup_destroy(KEYS.stream, KEYS.group)


async def holds(client: Redis, worker: Worker, number: int) -> bool:
    """Tell whether so much is pending for the worker."""
    try:
        rows = await pending_of(client)
    except Exception:  # noqa: BLE001 - the group is gone
        return False
    return sum(owner == worker.consumer for _, owner, _ in rows) == number


@CASES
@extending
@pytest.mark.parametrize("how", ["consumer", "group"])
async def test_a_running_job_goes_on_is_pending_again_and_is_acknowledged(
    server: RedisServer, client: Redis, how: str, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    handler = Holding()
    worker = make_worker(server.url, handler, **(SETTINGS | changes), refresh_s=0.1)
    await enqueue(client, 1, 2, 3)
    async with running(worker):
        await handler.has_started(3)
        await client.hset(KEYS.settings, "last_id", handler.started[-1].entry_id)  # as housekeeping does
        await vanish(client, worker, how)
        await wait_until(lambda: holds(client, worker, 3), "all are held again")
        assert handler.ended == []
        handler.gate.set()
    assert sorted(handler.ended) == [(1, "done"), (2, "done"), (3, "done")]
    assert (worker.counts.acked, worker.counts.rejected) == (3, 0)
    assert await event_names(client) == ["acked"] * 3
    assert "restored running deliveries" in caplog.text


# ---- the retry stream, which is made anew only where the policy needs it


def joined_since(worker: Worker) -> Callable[[], bool]:
    """Return a question whether the worker has joined its group once more, and found no retry stream."""
    membership = process_of(worker)._context.membership
    joins = membership.joins
    return lambda: membership.joins > joins and membership.sources == (membership.main,)


@pytest.mark.parametrize("how", ["del", "flushall"])
async def test_a_job_of_a_deleted_retry_stream_is_not_settled_and_blocks_no_other(
    server: RedisServer, client: Redis, how: str
) -> None:
    """Neither the verdicts that wait behind it, nor a worker that is to stop."""
    handler = Holding()
    await enqueue(client, 1, stream=KEYS.retry)
    worker = make_worker(server.url, handler, **SETTINGS)
    async with running(worker):
        await handler.has_started()
        gone = joined_since(worker)
        await client.execute_command(*(("DEL", KEYS.retry) if how == "del" else ("FLUSHALL",)))
        await wait_until(gone, "it has found that out")
        handler.gate.set()
        await wait_until(lambda: worker.counts.rejected == 1, "it is nobody's")
        await enqueue(client, 2)
        await wait_until(lambda: worker.counts.acked == 1, "the stream is read")
        assert process_of(worker).in_hand() == []


@extending
async def test_a_job_of_a_deleted_retry_stream_is_taken_from_its_handler(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    await enqueue(client, 1, stream=KEYS.retry)
    worker = make_worker(server.url, handler, **SETTINGS)
    async with running(worker):
        await handler.has_started()
        await client.delete(KEYS.retry)
        await wait_until(lambda: handler.ended == [(1, "cancelled")], "it is lost")
        await enqueue(client, 2)
        handler.gate.set()
        await wait_until(lambda: worker.counts.acked == 1, "the stream is read")
    assert worker.counts.rejected == 1


class Asking:
    """Stops the call that takes deliveries back, until the test chooses its outcome."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.answered = anyio.Event(), anyio.Event()
        monkeypatch.setattr(Heartbeat, "_hold", self._hold_again)

    async def _hold_again(self, _batch: Sequence[Delivery]) -> list[Delivery]:
        self.asked.set()
        await self.answered.wait()
        return []


async def test_a_vanished_job_is_asked_for_again(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next beat it would be too late, by some milliseconds (seed 710411)."""
    handler, take_back, beats = Holding(), Heartbeat._hold, 0

    async def is_answered_at_last(heartbeat: Heartbeat, batch: Sequence[Delivery]) -> list[Delivery]:
        nonlocal beats
        beats += 1
        if beats < 3:
            raise RedisConnectionError("simulated: the reply was lost")
        return await take_back(heartbeat, batch)

    monkeypatch.setattr(Heartbeat, "_hold", is_answered_at_last)
    worker = make_worker(server.url, handler, **SETTINGS)
    await enqueue(client, 1)
    async with running(worker):
        await handler.has_started()
        await client.xgroup_delconsumer(KEYS.stream, KEYS.group, worker.consumer)
        process_of(worker)._heartbeat._learn(process_of(worker).in_hand(), [HeartbeatAnswer.VANISHED], monotonic())
        await wait_until(lambda: pending_of(client), "it is ours again")
        handler.gate.set()
        await wait_until(lambda: worker.counts.acked == 1, "it is settled")
    assert beats == 3


@pytest.mark.parametrize("lost_by", ["its new owner", "its timeout"])
async def test_a_job_lost_after_its_end_takes_no_other_with_it(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch, lost_by: str
) -> None:
    """Its handler has ended and cannot be cancelled. A cancellation would end the worker itself, silently."""
    handler, asking = Holding(), Asking(monkeypatch)
    worker = make_worker(server.url, handler, **SETTINGS)
    await enqueue(client, 1)
    async with running(worker):
        await handler.has_started()
        await vanish(client, worker, "consumer")
        (held,) = process_of(worker).in_hand()
        process_of(worker)._heartbeat._learn([held], [HeartbeatAnswer.VANISHED], monotonic())
        with anyio.fail_after(PATIENCE_S):
            await asking.asked.wait()
        handler.gate.set()
        await wait_until(lambda: handler.ended == [(1, "done")], "it is done")
        if lost_by == "its timeout":
            held.interrupt(Interruption.TIMEOUT)
        asking.answered.set()
        await enqueue(client, 2)
        await wait_until(lambda: (2, "done") in handler.ended, "the worker goes on")
        assert not process_of(worker).obstacles()


async def acknowledged(client: Redis) -> list[str]:
    """Return the jobs that were acknowledged."""
    return [event.job for event in await read_events(client, KEYS) if event.event == "acked"]


@extending
async def test_w6_nothing_is_held_again_while_a_settlement_has_no_answer(
    server: RedisServer, client: Redis, proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script compares the number of the last answered settlement, so it does not know the end of this one."""
    await client.script_load(ACK.source)
    through, ends, calls, hold = await proxy(server), anyio.Event(), list[str](), Moves.hold

    async def noted(moves: Moves, connection: Any, source: str, *words: Any, **more: Any) -> list[bool]:
        calls.append(source)
        return await hold(moves, connection, source, *words, **more)

    async def handle(job: Job) -> None:
        if number_of(job) == 2:
            await ends.wait()

    monkeypatch.setattr(Moves, "hold", noted)
    sent, reported = through.hold_request(runs(ACK)), list[HeartbeatAnswer]()
    learn = Heartbeat._learn

    def note(heartbeat: Heartbeat, batch: Any, answers: Sequence[HeartbeatAnswer], asked_at: float) -> None:
        reported.extend(answers)
        learn(heartbeat, batch, answers, asked_at)

    monkeypatch.setattr(Heartbeat, "_learn", note)
    await enqueue(client, 1, 2)
    async with running(make_worker(through.url, handle, **SETTINGS, refresh_s=0.1)) as worker:
        await sent.wait()
        await vanish(client, worker, "consumer")
        await wait_until(lambda: reported.count(HeartbeatAnswer.VANISHED) >= 2, "heartbeats report that it vanished")
        assert calls == []
        sent.release()
        await wait_until(lambda: holds(client, worker, 1), "it is held again once the settlement is answered")
        ends.set()
    assert worker.counts.acked + worker.counts.rejected == 2


@extending
async def test_w6_a_job_that_ends_while_it_is_held_again_is_settled_afterwards(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settled before, it would be pending again, and run once more when its visibility timeout has passed."""
    handler, hold = Holding(), Moves.hold
    asked, go_on = anyio.Event(), anyio.Event()

    async def late(*words: Any, **more: Any) -> list[bool]:
        asked.set()
        await go_on.wait()
        return await hold(*words, **more)

    monkeypatch.setattr(Moves, "hold", late)
    worker = make_worker(server.url, handler, **SETTINGS, refresh_s=0.1)
    [first] = await enqueue(client, 1)
    async with running(worker):
        await handler.has_started()
        await vanish(client, worker, "consumer")
        with anyio.fail_after(PATIENCE_S):
            await asked.wait()
        handler.gate.set()
        await enqueue(client, 2)
        await wait_until(lambda: len(handler.ended) == 2, "both are done")
        assert await acknowledged(client) == []
        go_on.set()
        await wait_until(lambda: _is_acknowledged(client, first), "it is settled")
    assert await pending_of(client) == []
    assert (worker.counts.acked, worker.counts.rejected) == (2, 0)


async def _is_acknowledged(client: Redis, job: str) -> bool:
    return job in await acknowledged(client)


async def test_a_worker_that_ends_unasked_says_so(server: RedisServer) -> None:
    """A task that is cancelled without a reason ends all others, as if the program wanted it. So it is an error."""
    worker = make_worker(server.url, Holding(), **SETTINGS)

    async def cancel_its_tasks() -> None:
        await wait_until(lambda: worker.process is not None and not process_of(worker).obstacles(), "it works")
        guard = process_of(worker)._slots._guard
        assert guard is not None
        guard.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_its_tasks)
        with pytest.raises(RuntimeError, match="worker stopped unexpectedly"):
            await worker.run()
