"""Sends heartbeats for the deliveries in flight, so that they are not recovered from a busy worker.

They have a thread with an event loop and a connection of its own, because a handler can block the worker's event loop
until its timeout. The thread extends queued and running deliveries every quarter of the visibility timeout. It
also sends one without deliveries, because each heartbeat notes the beat of the group (``9_beat.lua``). It begins when
the worker begins, so that it is connected before the server has too many clients. Not extended, and so recovered, are

- a job that runs longer than its timeout,
- all deliveries of the process while that job blocks the event loop, because none of them could be settled, and
- all deliveries of a thread that gets no connection.

The thread shares little with the event loop. It copies `Source.deliveries` with one call into C, which no other thread
can interrupt. It reads attributes of each job (`stage`, `started`, `interruption`). The loop replaces them as a whole,
so each value was right a moment ago, and the script decides. The thread writes only `Delivery.proven`. The rest goes to
the loop by ``call_soon_threadsafe``, and the loop checks again, because there can be a verdict meanwhile.

A handler in C that keeps the interpreter's lock stops this thread as well.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from math import inf
from typing import Any

import anyio
from anyio import to_thread
from redis.exceptions import RedisError

from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.in_flight import ENDED, RUNNING, Delivery, Source
from workers.protocol.calls import in_calls
from workers.protocol.calls.moves import HandlerState, HeartbeatAnswer, HeartbeatEntry
from workers.protocol.connection import COMMAND_TIMEOUT_S, KeptConnection, commands_client
from workers.protocol.messages import entry_order
from workers.runtime.clock import monotonic
from workers.runtime.pauses import pause_s

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
EXTENDING = "sending heartbeats"
FIRST_BEAT_S, FIRST_BEAT_PART = 1.0, 1 / 3
"""Heartbeats report that a quarantined job runs after so many seconds, or this part of a shorter visibility timeout
(rule W8). By then the job has had the time to crash its process, and the gate moves on."""
LONGEST_SLEEP_S = 1.0
"""Longest sleep of the thread, after which it sees new group settings."""
END_S = 1.0
"""How long the thread may take to end. It ends by itself in any case."""
PROVEN = frozenset({HeartbeatAnswer.EXTENDED, HeartbeatAnswer.PAYLOAD_GONE})
"""These answers prove that Redis got the heartbeat of the delivery."""

End = Callable[[], Awaitable[None]]
Begin = Callable[[Coroutine[Any, Any, None], str], End]
"""Runs a coroutine beside the event loop, under a name. Returns a function that ends it."""


def begin_thread(beating: Coroutine[Any, Any, None], name: str) -> End:
    """Run ``beating`` in a thread with an event loop of its own."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(beating)

    def run() -> None:
        try:
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        finally:
            loop.close()

    async def end() -> None:
        with suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(task.cancel)
        with anyio.move_on_after(END_S):
            await to_thread.run_sync(thread.join, abandon_on_cancel=True)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return end


class Heartbeat(WorkerPart):
    """Sends heartbeats from `start` to `stop`, and handles the answers in the event loop."""

    def __init__(self, context: WorkerContext, begin: Begin = begin_thread) -> None:
        """``begin`` begins the thread."""
        super().__init__(context)
        self._kept, self._moves, self._turn = context.kept, context.moves, context.turn
        self._sources = context.membership.both
        for source in self._sources:
            source.extend = self.extend
        self._begin = begin
        self._end: End | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_answered = True
        self._known_change = -inf
        self._holding: asyncio.Task[None] | None = None

    # ---- in the event loop

    def start(self) -> None:
        """Begin. The group must be joined."""
        self._loop = asyncio.get_running_loop()
        self._end = self._begin(self._run(), f"heartbeat of {self._consumer}")

    async def stop(self) -> None:
        """Send no more heartbeats."""
        if self._end is not None:
            await self._end()
        if self._holding is not None:
            self._holding.cancel()

    async def extend(self, job: Delivery) -> bool:
        """Extend one delivery that runs, or is about to begin. Return False if it is not ours.

        Raises redis-py's errors.
        """
        asked_at = monotonic()
        [answer] = await self._moves.extend(self._kept, job.source.key, [_beating(job, begins=True)])
        if answer is HeartbeatAnswer.VANISHED:
            return job in await self._hold([job])
        if answer in PROVEN:
            job.proven = asked_at
        return answer in PROVEN

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

    def _learn(self, batch: Sequence[Delivery], answers: Sequence[HeartbeatAnswer], asked_at: float) -> None:
        self._reporter.works(EXTENDING)
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
            self._holding = asyncio.get_running_loop().create_task(self._hold_or_lose(vanished))

    async def _hold_or_lose(self, vanished: Sequence[Delivery]) -> None:
        """Hold vanished deliveries of one source again. A delivery with a new owner is lost.

        The call is repeated until it is answered, or until the next heartbeat, which asks again.
        """
        began, failures = monotonic(), 0
        while failures == 0 or monotonic() - began < self._period_s():
            try:
                held = await self._hold(vanished)
            except (RedisError, OSError) as error:
                failures += 1
                await self._pause_after(error, failures)
                continue
            self._lose([job for job in vanished if job not in held])
            return

    async def _hold(self, vanished: Sequence[Delivery]) -> list[Delivery]:
        """Hold vanished deliveries of one source again that are not settled yet. Return those that are ours.

        Waits until no settlement is under way (rule W6). Settlements wait meanwhile. Raises redis-py's errors.
        """
        async with self._turn.lock:
            batch = [job for job in vanished if job.source.holds(job)]
            if not batch:
                return []
            asked_at = monotonic()
            entries = [(job.raw_entry_id, job.times_delivered) for job in batch]
            results = await self._moves.hold(self._kept, batch[0].source.key, entries, answered=self._turn.answered)
        ours = [job for job, is_ours in zip(batch, results, strict=True) if is_ours]
        for job in ours:
            job.proven = asked_at
        self._reporter.taken_back(len(ours))
        return ours

    def _lose(self, deliveries: Sequence[Delivery]) -> None:
        """Stop the handlers of deliveries that are not ours any more. Their verdicts are not settled."""
        for job in deliveries:
            if job.lose():
                self._membership.join_again()  # the visibility timeout may be shorter now
                self._reporter.rejected(job, "extension", job.ran_ms())

    def _answer(self) -> None:
        self._loop_answered = True

    # ---- in the thread

    async def _run(self) -> None:
        timeout_s = max(SHORTEST_TIMEOUT_S, min(self._period_s(), COMMAND_TIMEOUT_S))
        client = commands_client(
            self._settings.redis_url, key=self._settings.keys.stream, timeout_s=timeout_s, max_connections=1
        )
        try:
            await self.beat_on(KeptConnection(client))
        finally:
            await client.aclose()

    async def beat_on(self, connection: KeptConnection) -> None:
        """Send heartbeats until the event loop of the worker is closed."""
        assert self._loop is not None
        failures, last = 0, -inf
        while not self._loop.is_closed():
            pause = min(self._period_s(), pause_s(failures) if failures else self._hurry_s(last))
            left = last + pause - monotonic()
            if left > 0:
                await anyio.sleep(min(left, LONGEST_SLEEP_S))
                continue
            last = monotonic()
            # Read before the beat. The event loop may publish a change meanwhile whose time is before the beat.
            self._known_change = self._membership.timeout_changed
            try:
                await self._beat(connection, last, self._period_s())
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

    async def _beat(self, connection: KeptConnection, now: float, period_s: float) -> None:
        """Send a heartbeat for all deliveries that are due. One without deliveries notes the beat."""
        loop_hangs = not self._loop_answered
        self._loop_answered = False
        self._call_in_loop(self._answer)
        hangs_for_good = loop_hangs and any(job.is_overdue(now) for _, held_of in self._in_hand() for job in held_of)
        due = [] if hangs_for_good else [*self._due(now, period_s, loop_hangs=loop_hangs)]
        for source, batch in due or [(self._membership.main, list[Delivery]())]:
            asked_at = monotonic()
            try:
                answers = await self._moves.extend(connection, source.key, [_beating(job) for job in batch])
            except RedisError as error:
                if not self._membership.is_gone(source, error):
                    raise
                self._call_in_loop(self._lose, batch)
                continue
            for job, result in zip(batch, answers, strict=True):
                if result in PROVEN:
                    job.proven = asked_at
            self._call_in_loop(self._learn, batch, answers, asked_at)

    def _in_hand(self) -> list[tuple[Source, list[Delivery]]]:
        return [(source, list(source.deliveries.values())) for source in self._sources]

    def _due(self, now: float, period_s: float, *, loop_hangs: bool = False) -> Iterator[tuple[Source, list[Delivery]]]:
        """Yield the deliveries that are due, in batches for calls."""
        before = max(now - period_s / 2, self._membership.timeout_changed)  # else the next beat is early enough
        for source, deliveries in self._in_hand():
            for batch in _batches([job for job in deliveries if _is_due(job, now, before, loop_hangs=loop_hangs)]):
                yield source, batch

    def _call_in_loop(self, function: Any, *arguments: Any) -> None:
        """Let the event loop call ``function``, unless the program has closed it."""
        assert self._loop is not None
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _beating(job: Delivery, *, begins: bool = False) -> HeartbeatEntry:
    """Return a delivery as a heartbeat reports it (rule W4). ``begins``: its handler is about to run."""
    runs = job.stage is RUNNING
    state = HandlerState.BEGINS if begins or runs else HandlerState.WAITS
    if runs and monotonic() >= job.runs_from:
        state = HandlerState.RUNS
    return HeartbeatEntry(job.raw_entry_id, job.times_delivered, state)


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
