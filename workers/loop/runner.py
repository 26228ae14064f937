"""One delivery from its slot to its outcome, with the steps own, announce, execute and conclude."""

import asyncio
from collections.abc import Callable, Iterable
from math import inf

from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.dispatch import HandlerCalls
from workers.loop.execution import HANDED_BACK, REASON_TIMEOUT, execute, failed, interrupted, judge, trace_of
from workers.loop.heartbeat import Heartbeat, first_beat_at
from workers.loop.held import ENDED, QUEUED, RUNNING, Held, Interruption
from workers.loop.isolation import Isolation
from workers.loop.membership import OLD
from workers.loop.settlement import Settlements
from workers.protocol.calls.settlement import Outcome, Verdict
from workers.protocol.errors import HandlerExitError
from workers.runtime.clock import monotonic
from workers.runtime.user_code import describe, exits_in


class Runner(WorkerPart):
    """Executes deliveries with their handlers, and hands their verdicts to the settler."""

    def __init__(
        self,
        context: WorkerContext,
        calls: HandlerCalls,
        settlements: Settlements,
        heartbeat: Heartbeat,
        isolation: Isolation,
        is_ending: Callable[[], bool],
    ) -> None:
        """``is_ending`` returns whether all of the worker is cancelled."""
        super().__init__(context)
        self._backoff = context.settings.backoff
        self._invoke = calls.invoke
        self._runs_in_thread = calls.runs_in_thread
        self._expires = True
        self._settlements = settlements
        self._heartbeat = heartbeat
        self._isolation = isolation
        self._hands_back = False
        self._is_ending = is_ending

    async def perform(self, held: Held, runner: "asyncio.Task[None] | None", began: float) -> float:
        """Take a delivery through all steps, from this moment on. Return the time afterwards.

        Every job pays for this, so it makes only necessary calls.

        If Redis has not heard of the delivery for half a visibility timeout, it may have been recovered. Then Redis is
        asked first. The same holds before the last delivery of a job. If this process dies of it, it is known that it
        had begun, and that no fresh job ran beside it.
        """
        verdict: Verdict | None = None
        timer: asyncio.TimerHandle | None = None
        try:
            membership = self._membership
            is_last = (held.deliveries > 1 or held.is_quarantined) and self.is_last(held)
            is_old = held.proven < began - membership.visibility_s * OLD  # as in `shows_from`; each job pays for it
            if is_last or is_old or self._isolation.is_kept:
                if not await self._has_its_turn(held, is_last=is_last):
                    return monotonic()
                began = monotonic()
            if is_last and held.is_quarantined:
                held.runs_from = first_beat_at(began, membership.visibility_s)
            held.begin(began, runner)
            if held.timeout_s != inf:  # the event loop's clock is the monotonic one
                timer = asyncio.get_running_loop().call_at(held.deadline, self._expire, held)
            if self._telemetry:
                verdict = await self._telemetry.execute(self._invoke, held, self._backoff)
            else:
                verdict = await execute(self._invoke, held, self._backoff, runner)
        except BaseException as error:  # noqa: BLE001 - raised again, unless the job alone was cancelled
            verdict = self._after(held, error)
        else:
            if held.interruption is not None:
                held.take_back_cancellation()
        finally:
            if timer is not None:
                timer.cancel()
        held.runner = None  # an interruption from now on has no handler to cancel, and leaves the runner intact
        if held.interruption is not None or self._hands_back:
            verdict = self._reconsidered(held, verdict, was_told_to_stop=runner is not None and runner.cancelling() > 0)
        now = monotonic()
        if verdict is not None and self._settlements.add(held, verdict, began, now):
            return inf  # the runner waits for room before its next job, and calls no other runner meanwhile
        return now

    # ---- the steps

    def is_last(self, held: Held) -> bool:
        """Return whether Redis has to know that a delivery begins. It is a batch of its own.

        A limit that was lowered while the job was quarantined does not let it run beside others.
        """
        return held.is_quarantined or 1 < held.deliveries >= self._membership.agreement.max_deliveries

    async def _has_its_turn(self, held: Held, *, is_last: bool) -> bool:
        """Wait until the delivery may begin beside others. Ask Redis if the ownership is still unknown by then."""
        runs_alone = held.is_quarantined
        while True:
            if (runs_alone or self._isolation.is_kept) and not await self._isolation.may_begin(held, alone=runs_alone):
                self.hand_back([held])
                return False
            if not is_last and held.proven >= self._membership.shows_from(monotonic()):
                return True
            if not await self._heartbeat.still_owns(held):
                return False
            if runs_alone or not self._isolation.is_kept:  # else a quarantined job waits meanwhile
                return True

    def _reconsidered(self, held: Held, verdict: Verdict | None, *, was_told_to_stop: bool) -> Verdict | None:
        """Return the verdict to settle of a job that was cancelled, or None if it is not ours any more.

        A handler that had to stop is never acknowledged, with any result, because it may have caught the cancellation
        in the middle of its work (rule W1 of docs/protocol.md).
        """
        if held.stage is ENDED:
            return None  # it was concluded without waiting for its handler
        if held.interruption is Interruption.LOST:
            return None
        if held.interruption is Interruption.TIMEOUT:
            error = f"ran longer than its timeout of {held.timeout_s:g} s"
            return failed(held, error, self._backoff, reason=REASON_TIMEOUT)
        # An exception or result of a handler after a cancellation is not about the job.
        is_void = verdict is not None and (
            verdict.outcome is Outcome.NACK or (verdict.outcome is Outcome.ACK and was_told_to_stop)
        )
        return interrupted(held) if is_void else verdict

    def _after(self, held: Held, error: BaseException) -> Verdict | None:
        """Conclude a job without an outcome, after the runner was cancelled, or the handler exited.

        Raises HandlerExitError after an exit, because SystemExit itself would break the event loop before the jobs are
        settled.
        """
        if isinstance(error, asyncio.CancelledError):
            return self._after_cancellation(held, error)
        exits = exits_in(error)
        if not exits:
            raise error  # the coroutine is thrown away
        held.runner = None
        if self._hands_back:
            self._conclude_cancelled(held)
        elif held.interruption is not Interruption.LOST:
            kind = type(exits[0]).__qualname__
            verdict = failed(held, describe(exits[0]), self._backoff, traceback=trace_of(exits[0]), exception=kind)
            self._settlements.add(held, verdict, held.started, monotonic())
        raise HandlerExitError(self._reporter.exited(held, exits[0])) from exits[0]

    def _after_cancellation(self, held: Held, error: asyncio.CancelledError) -> Verdict | None:
        """Return the settlement of a job whose runner was cancelled. Raise if the runner has to end.

        A handler that cancels the task it runs in has failed. The cancellation is not taken back, because others may be
        on their way, and the runner is given up anyway.
        """
        if self._is_ending():
            self._conclude_cancelled(held)
            raise error
        if held.interruption is not None:
            held.take_back_cancellation()
            return None
        if held.runner is None:
            raise error
        return judge(held, error, self._backoff)

    def _conclude_cancelled(self, held: Held) -> None:
        """Return a job that the drain deadline cancels. Other cancelled jobs stay pending."""
        if self._hands_back and held.stage is not ENDED and held.interruption is not Interruption.LOST:
            now = monotonic()
            if held.stage is QUEUED:
                self._settlements.add(held, HANDED_BACK, now, now)
            else:
                self._settlements.add(held, interrupted(held), held.started, now)

    def _expire(self, held: Held) -> None:
        """Stop the handler of a job that has exceeded its timeout."""
        if held.stage is not RUNNING or held.interruption is not None or not self._expires:
            return
        self._reporter.timed_out(held, goes_on=self._runs_in_thread(held))
        held.interrupt(Interruption.TIMEOUT)

    # ---- the end

    def hand_back(self, deliveries: Iterable[Held]) -> None:
        """Return the jobs that have not started. Returns at once."""
        now = monotonic()
        for held in deliveries:
            if held.interruption is None:
                self._settlements.add(held, HANDED_BACK, now, now)

    def hand_back_cancelled(self) -> None:
        """Return jobs that are cancelled from now on, because the drain deadline has passed."""
        self._hands_back = True

    def leave_uncancelled(self) -> None:
        """Conclude jobs whose handlers go on after their cancellation, for example because they wait for a thread."""
        ours = [held for source in self._membership.both for held in source.deliveries.values()]
        going_on = [held for held in ours if held.stage is RUNNING and held.runner and not held.runner.done()]
        for held in going_on:
            self._conclude_cancelled(held)
        self._reporter.left_running(going_on)

    def stop(self) -> None:
        """Expire no job any more."""
        self._expires = False
