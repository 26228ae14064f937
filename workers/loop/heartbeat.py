"""Sends heartbeats for the deliveries in flight, so that they are not recovered from a busy worker.

A thread with a blocking connection does it, because a handler can block the event loop until its timeout. It extends
queued and running deliveries every quarter of the visibility timeout. Without deliveries it also sends a heartbeat,
because each one notes the beat of the group (``9_beat.lua``). Not extended, and so recovered, are

- a job that runs longer than its timeout,
- all deliveries of the process while that job blocks the event loop, because none of them could be settled, and
- all deliveries of a thread that gets no connection, for example because the server takes no more clients. So it
  connects when the worker begins.

The thread shares little with the event loop. It copies `Source.deliveries` with one call into C, which no other thread
can interrupt. It reads attributes of each job (`stage`, `started`, `interruption`). The loop replaces them as a whole,
so each value was right a moment ago, and the script decides. The thread writes only `Delivery.proven`. The rest goes to
the loop by ``call_soon_threadsafe``, and the loop checks again, because there can be a verdict meanwhile.

A handler in C that keeps the interpreter's lock stops this thread as well.

`Heartbeat.steps` decides when to extend which deliveries. `workers.loop.heartbeat_thread` has the thread.
"""

import asyncio
import logging
from collections.abc import Generator, Iterator, Sequence
from math import inf
from typing import Any

import anyio
from redis.exceptions import RedisError

from workers.loop.calls import PROVEN, beating
from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.heartbeat_thread import (
    Answers,
    Extending,
    HeartbeatThread,
    LoopIsClosedError,
    MakeThread,
    Steps,
)
from workers.loop.in_flight import ENDED, RUNNING, Delivery, Source
from workers.protocol.calls import in_calls
from workers.protocol.calls.moves import HeartbeatAnswer
from workers.protocol.connection import COMMAND_TIMEOUT_S
from workers.protocol.messages import entry_order
from workers.runtime.clock import monotonic
from workers.runtime.pauses import pause_s

logger = logging.getLogger(__name__)

BEATS = 4
"""Heartbeats in one visibility timeout. A delivery that was extended less than half a period ago waits for the next
one, so at most three eighths of the timeout are between two extensions. A gap of a third leaves 0.29 of the timeout."""
MAX_BATCH = 500
MAX_BATCH_BYTES = 1_048_576
"""The maximum payload of a call, plus one job, so that no call blocks the server for long."""
SHORTEST_TIMEOUT_S = 0.5
"""The shortest timeout of a call, for any visibility timeout."""
TAKEN_PART = 2 / 3
"""Part of the visibility timeout. A delivery with a heartbeat this recent is not recovered yet."""
EXTENDING = "extending"
FIRST_BEAT_S, FIRST_BEAT_PART = 1.0, 1 / 3
"""The first heartbeat of a quarantined job that says that it runs comes after so many seconds, or after this part of a
shorter visibility timeout (rule W8). By then the job has had the time to crash its process, and the gate moves on."""
LONGEST_SLEEP_S = 1.0
"""Longest sleep of the thread, after which it sees new group settings."""


class Heartbeat(WorkerPart):
    """Decides about heartbeats from `start` to `stop`, and handles the answers in the event loop."""

    def __init__(self, context: WorkerContext, make: MakeThread = HeartbeatThread) -> None:
        """``make`` makes the thread that runs `steps`."""
        super().__init__(context)
        self._calls = context.calls
        self._sources = context.membership.both
        self._make_thread = make
        self._beating: HeartbeatThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_answered = True
        self._known_change = -inf
        self._holding: asyncio.Task[None] | None = None

    # ---- in the event loop

    def start(self) -> None:
        """Begin. The group must be joined."""
        self._loop = asyncio.get_running_loop()
        timeout_s = max(SHORTEST_TIMEOUT_S, min(self._period_s(), COMMAND_TIMEOUT_S))
        self._beating = self._make_thread(self.steps(), self._calls.moves, self._settings.redis_url, timeout_s)
        self._beating.start()

    async def stop(self) -> None:
        """Send no more heartbeats. A call that is under way ends with its reply, or with its timeout."""
        if self._beating is not None:
            await self._beating.stop()
        if self._holding is not None:
            self._holding.cancel()

    async def still_owns(self, job: Delivery) -> bool:
        """Return whether a delivery without a recent heartbeat is still ours, before it begins.

        The event loop was blocked, or Redis was out of reach, so it can be recovered. Asks until there is an answer.
        """
        failures = 0
        while True:
            try:
                ours = await job.extend()
            except (RedisError, OSError) as error:
                if self._membership.is_gone(job.source, error):
                    self._lose([job])
                    return False
                failures += 1
                await self._pause_after(error, failures)
                continue
            self._reporter.works(EXTENDING)
            if not ours:
                self._lose([job])
            return job.source.holds(job)

    async def _pause_after(self, error: Exception, failures: int) -> None:
        self._reporter.failed(EXTENDING, error)
        await anyio.sleep(pause_s(failures))

    def _works(self, batch: Sequence[Delivery], answers: Answers, asked_at: float) -> None:
        self._reporter.works(EXTENDING)
        self._learn(batch, answers, asked_at)

    def _learn(self, batch: Sequence[Delivery], answers: Answers, asked_at: float) -> None:
        recent = asked_at - self._membership.visibility_s * TAKEN_PART
        vanished = list[Delivery]()
        for job, result in zip(batch, answers, strict=True):
            if result is HeartbeatAnswer.PAYLOAD_GONE:
                job.has_lost_payload = True
            elif job.has_lost_payload:
                pass  # it goes on, because no other worker can run it
            elif result is HeartbeatAnswer.VANISHED:
                vanished.append(job)
            elif result is HeartbeatAnswer.REJECTED or (result is HeartbeatAnswer.TAKEN and job.proven <= recent):
                self._lose([job])  # one that was taken later is not recovered yet, so its reader gives it back
        if vanished and (self._holding is None or self._holding.done()):  # else the next beat asks again
            self._holding = asyncio.get_running_loop().create_task(self._hold_again(vanished))

    async def _hold_again(self, vanished: Sequence[Delivery]) -> None:
        """Hold vanished deliveries of one source again. A delivery with a new owner is lost.

        The call is repeated until it is answered, or until the next heartbeat, which asks again.
        """
        source, began, failures = vanished[0].source, monotonic(), 0
        while failures == 0 or monotonic() - began < self._period_s():
            try:
                ours, lost = await self._calls.hold(source, vanished)
            except (RedisError, OSError) as error:
                failures += 1
                await self._pause_after(error, failures)
                continue
            self._lose(lost)
            self._reporter.taken_back(len(ours))
            return

    def _lose(self, deliveries: Sequence[Delivery]) -> None:
        """Tell the handlers of deliveries to stop that are not ours. Their verdicts are not settled."""
        for job in deliveries:
            if job.lose():
                self._membership.join_again()  # the visibility timeout may be shorter now
                self._reporter.refused(job, "extension", job.ran_ms())

    def _answer(self) -> None:
        self._loop_answered = True

    # ---- in the thread

    def steps(self) -> Steps:
        """Yield the next step, without end. Raises LoopIsClosedError after the event loop was closed."""
        self._known_change = self._membership.timeout_changed
        failures, last = 0, monotonic()
        while True:
            pause = min(self._period_s(), pause_s(failures) if failures else self._hurry_s(last))
            left = last + pause - monotonic()
            if left > 0:
                yield min(left, LONGEST_SLEEP_S)
                continue
            last = monotonic()
            # Read before the beat. The event loop may publish a change meanwhile whose time is before the beat.
            self._known_change = self._membership.timeout_changed
            try:
                yield from self._beat(last, self._period_s())
                failures = 0
            except (RedisError, OSError) as error:
                failures += 1
                self._call_in_loop(self._reporter.failed, EXTENDING, error)

    def _period_s(self) -> float:
        return self._membership.visibility_s / BEATS

    def _hurry_s(self, last: float) -> float:
        """Return the longest pause after the ``last`` beat, if the next one has to come before its time."""
        if self._membership.timeout_changed != self._known_change:  # a lowered timeout counts soon
            return 0.0
        first = [job.runs_from for _, held_of in self._in_hand() for job in held_of if job.stage is RUNNING]
        return min((at - last for at in first if at > last), default=inf)

    def _beat(self, now: float, period_s: float) -> Generator[Extending, Answers | None, None]:
        """Send a heartbeat for all deliveries that are due. One without deliveries notes the beat."""
        loop_hangs = not self._loop_answered
        self._loop_answered = False
        self._call_in_loop(self._answer)
        hangs_for_good = loop_hangs and any(job.is_overdue(now) for _, held_of in self._in_hand() for job in held_of)
        due = [] if hangs_for_good else [*self._due(now, period_s, loop_hangs=loop_hangs)]
        for source, batch in due or [(self._membership.main, list[Delivery]())]:
            asked_at = monotonic()
            try:
                answers = yield Extending(source, [beating(job) for job in batch])
            except RedisError as error:
                if not self._membership.is_gone(source, error):
                    raise
                self._call_in_loop(self._lose, batch)
                continue
            assert answers is not None
            for job, result in zip(batch, answers, strict=True):
                if result in PROVEN:
                    job.proven = asked_at
            self._call_in_loop(self._works, batch, answers, asked_at)

    def _in_hand(self) -> list[tuple[Source, list[Delivery]]]:
        return [(source, list(source.deliveries.values())) for source in self._sources]

    def _due(self, now: float, period_s: float, *, loop_hangs: bool = False) -> Iterator[tuple[Source, list[Delivery]]]:
        """Yield the deliveries that are due, in batches for calls."""
        before = max(now - period_s / 2, self._membership.timeout_changed)  # else the next beat is early enough
        for source, deliveries in self._in_hand():
            for batch in _batches([job for job in deliveries if _is_due(job, now, before, loop_hangs=loop_hangs)]):
                yield source, batch

    def _call_in_loop(self, function: Any, *arguments: Any) -> None:
        """Let the event loop call ``function``."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError as error:
            raise LoopIsClosedError from error


def _is_due(job: Delivery, now: float, before: float, *, loop_hangs: bool) -> bool:
    """Return whether a delivery needs a heartbeat now. An ended one does only while the event loop hangs."""
    if job.stage is ENDED and not loop_hangs:
        return False
    if job.interruption is not None or job.is_overdue(now):
        return False
    return job.proven < before or job.proven < job.runs_from <= now


def first_beat_at(began: float, visibility_s: float) -> float:
    """Return when a heartbeat first reports that a quarantined job runs which ``began`` then (rule W8)."""
    return began + min(FIRST_BEAT_S, visibility_s * FIRST_BEAT_PART)


def _batches(deliveries: Sequence[Delivery]) -> Iterator[list[Delivery]]:
    """Split deliveries into batches for calls."""
    ordered = sorted(deliveries, key=lambda job: entry_order(job.raw_entry_id))
    return in_calls(ordered, lambda job: job.payload_bytes, most=MAX_BATCH, most_bytes=MAX_BATCH_BYTES)
