"""One delivery from its slot to its outcome, with the steps own, announce, execute and conclude."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from math import inf

from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.dispatch import HandlerCalls
from workers.loop.execution import HANDED_BACK, REASON_TIMEOUT, execute, failed, interrupted, judge, trace_of
from workers.loop.heartbeat import Heartbeat, first_beat_at
from workers.loop.in_flight import ENDED, QUEUED, RUNNING, Delivery, Interruption
from workers.loop.isolation import Isolation
from workers.loop.membership import OLD
from workers.loop.settlement import Settlements
from workers.loop.slots import Batch
from workers.protocol.calls.moves import Outcome, Verdict
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
        self._call_of = calls.call_of
        self.expires = True
        """Jobs are stopped at their timeouts."""
        self._settlements = settlements
        self._heartbeat = heartbeat
        self._isolation = isolation
        self.hands_back = False
        """Cancelled jobs are returned, because the drain deadline has passed. Otherwise they stay pending."""
        self._is_ending = is_ending

    async def perform(self, job: Delivery, runner: "asyncio.Task[None] | None", began: float) -> float:
        """Take a delivery through all steps, from this moment on. Return the time afterwards.

        Every job pays for this, so it makes only necessary calls.

        If Redis has not heard of the delivery for half a visibility timeout, it may have been recovered. Then Redis is
        asked first. The same holds before the last delivery of a job. If it kills this process, Redis knows that it had
        begun, and that no fresh job ran beside it.
        """
        verdict: Verdict | None = None
        timer: asyncio.TimerHandle | None = None
        try:
            membership = self._membership
            is_last = (job.deliveries > 1 or job.is_quarantined) and self.is_last(job)
            is_old = job.proven < began - membership.visibility_s * OLD  # as in `is_recent`, without a call
            if is_last or is_old or self._isolation.is_kept:
                if not await self._has_its_turn(job, is_last=is_last):
                    return monotonic()
                began = monotonic()
            if is_last and job.is_quarantined:
                job.runs_from = first_beat_at(began, membership.visibility_s)
            job.begin(began, runner)
            if job.timeout_s != inf:  # the event loop's clock is the monotonic one
                timer = asyncio.get_running_loop().call_at(job.deadline, self._expire, (job,), job.deadline)
            if self._telemetry.traces and not job.is_unsampled:
                with self._telemetry.running((job,)):
                    verdict = await execute(self._invoke, job, self._backoff, runner)
            else:
                verdict = await execute(self._invoke, job, self._backoff, runner)
        except BaseException as error:  # noqa: BLE001 - raised again, unless the job alone was cancelled
            [verdict] = self._after((job,), error)
        finally:
            if timer is not None:
                timer.cancel()
        if job.interruption is not None:
            job.take_back_cancellation()
        job.runner = None  # an interruption from now on has no handler to cancel, and leaves the runner intact
        if job.interruption is not None or self.hands_back:
            verdict = self._reconsidered(job, verdict, had_to_stop=_is_cancelling(runner))
        now = monotonic()
        if verdict is not None and self._settlements.add(job, verdict, began, now):
            return inf  # the runner waits for room before its next job, and calls no other runner meanwhile
        return now

    async def perform_batch(self, batch: Batch, runner: "asyncio.Task[None] | None", _began: float) -> float:
        """Take the deliveries of a batch through the same steps, with one call of the handler.

        If one of the jobs has to stop, the handler has to. The other jobs are then handed back, unless it has decided
        to retry or reject them.
        """
        try:
            jobs = await self._that_may_begin(batch.jobs)
        except asyncio.CancelledError:
            if self._is_ending():
                for job in batch.jobs:
                    self._conclude_cancelled(job)
            raise
        if not jobs:
            return monotonic()
        began = monotonic()
        verdicts = await self._execute_batch(Batch(batch.call, jobs), runner, began)
        was_stopped, now = False, monotonic()
        for job in jobs:
            if job.interruption is not None:
                was_stopped = True
                job.take_back_cancellation()
            job.runner = None
        if was_stopped or self.hands_back:
            had_to_stop = was_stopped or _is_cancelling(runner)
            judged = zip(jobs, verdicts, strict=True)
            verdicts = [self._reconsidered(job, verdict, had_to_stop=had_to_stop) for job, verdict in judged]
        return inf if self._settlements.add_batch(jobs, verdicts, began, now) else now

    async def _execute_batch(
        self, batch: Batch, runner: "asyncio.Task[None] | None", began: float
    ) -> Sequence[Verdict | None]:
        """Run the handler, and return the verdicts. There is one timer, because the first timeout stops the handler."""
        jobs = batch.jobs
        for job in jobs:
            job.begin(began, runner)
        deadline = began + min([job.timeout_s for job in jobs])
        loop = asyncio.get_running_loop()
        timer = loop.call_at(deadline, self._expire, jobs, deadline) if deadline != inf else None
        try:
            with self._telemetry.running(jobs) if self._telemetry.traces else nullcontext():
                return await batch.call.execute(jobs, self._backoff, runner)
        except BaseException as error:  # noqa: BLE001 - raised again, unless the jobs alone were cancelled
            return self._after(jobs, error)
        finally:
            if timer is not None:
                timer.cancel()

    # ---- the steps

    def is_last(self, job: Delivery) -> bool:
        """Return whether Redis has to know that a delivery begins. It does not begin in a batch.

        A limit that was lowered while the job was quarantined does not let it run beside others.
        """
        return job.is_quarantined or 1 < job.deliveries >= self._membership.group_settings.max_deliveries

    async def _that_may_begin(self, jobs: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return the deliveries that are ours, as soon as all of them may begin."""
        while jobs and (self._isolation.is_kept or not self._membership.is_recent(min([job.proven for job in jobs]))):
            jobs = [job for job in jobs if await self._has_its_turn(job, is_last=False)]
        return jobs

    async def _has_its_turn(self, job: Delivery, *, is_last: bool) -> bool:
        """Wait until the delivery may begin beside others. Ask Redis if the ownership is still unknown by then."""
        runs_alone = job.is_quarantined
        while True:
            if (runs_alone or self._isolation.is_kept) and not await self._isolation.may_begin(job, alone=runs_alone):
                self.hand_back([job])
                return False
            if not is_last and self._membership.is_recent(job.proven):
                return True
            if not await self._heartbeat.still_owns(job):
                return False
            if runs_alone or not self._isolation.is_kept:  # else a quarantined job waits meanwhile
                return True

    def _reconsidered(self, job: Delivery, verdict: Verdict | None, *, had_to_stop: bool) -> Verdict | None:
        """Return the verdict to settle of a job that was cancelled, or None if it is not ours any more.

        A handler that had to stop is never acknowledged, with any result, because it may have caught the cancellation
        in the middle of its work (rule W1 of docs/protocol.md).
        """
        if job.stage is ENDED:
            return None  # it was concluded without waiting for its handler
        if job.interruption is Interruption.LOST:
            self._telemetry.lost_ended(job)
            return None
        if job.interruption is Interruption.TIMEOUT:
            error = f"ran longer than its timeout of {job.timeout_s:g} s"
            return failed(job, error, self._backoff, reason=REASON_TIMEOUT)
        # An exception or result of a handler after a cancellation is not about the job.
        is_void = verdict is None or verdict.outcome is Outcome.NACK or (verdict.outcome is Outcome.ACK and had_to_stop)
        return interrupted(job) if is_void else verdict

    def _after(self, jobs: Sequence[Delivery], error: BaseException) -> Sequence[Verdict | None]:
        """Conclude jobs without outcomes, after the runner was cancelled, or the handler exited.

        Raises the error that ends the runner. It is HandlerExitError after an exit, because SystemExit itself would
        break the event loop before the jobs are settled. A handler that cancels the task it runs in has failed. The
        cancellation is not taken back, because others may be on their way, and the runner is given up anyway.
        """
        exits = exits_in(error)
        if exits:
            for job in jobs:
                self._conclude_exited(job, exits[0])
            raise HandlerExitError(self._reporter.exited(jobs[0], exits[0])) from exits[0]
        if isinstance(error, asyncio.CancelledError):
            if self._is_ending():
                for job in jobs:
                    self._conclude_cancelled(job)
            elif any(job.interruption is not None for job in jobs):
                return [None] * len(jobs)
            elif jobs[0].runner is not None:
                return [judge(job, error, self._backoff) for job in jobs]
        raise error

    def _conclude_exited(self, job: Delivery, error: BaseException) -> None:
        job.runner = None
        if self.hands_back:
            self._conclude_cancelled(job)
        elif job.interruption is not Interruption.LOST:
            kind = type(error).__qualname__
            verdict = failed(job, describe(error), self._backoff, traceback=trace_of(error), exception=kind)
            self._settlements.add(job, verdict, job.started, monotonic())

    def _conclude_cancelled(self, job: Delivery) -> None:
        """Return a cancelled job, if the drain deadline has passed."""
        if self.hands_back and job.stage is not ENDED and job.interruption is not Interruption.LOST:
            now = monotonic()
            if job.stage is QUEUED:
                self._settlements.add(job, HANDED_BACK, now, now)
            else:
                self._settlements.add(job, interrupted(job), job.started, now)

    def _expire(self, jobs: Sequence[Delivery], deadline: float) -> None:
        """Stop the handlers of jobs whose timeouts end at ``deadline``. uvloop calls it up to 1 ms too early."""
        for job in jobs:
            if job.is_overdue(deadline) and job.interruption is None and self.expires:
                self._reporter.timed_out(job, goes_on=self._call_of(job).in_thread)
                job.interrupt(Interruption.TIMEOUT)

    # ---- the end

    def hand_back(self, deliveries: Iterable[Delivery]) -> None:
        """Return the jobs that have not started. Returns at once."""
        now = monotonic()
        for job in deliveries:
            if job.interruption is None:
                self._settlements.add(job, HANDED_BACK, now, now)

    def leave_uncancelled(self) -> None:
        """Conclude jobs whose handlers go on after their cancellation, for example because they wait for a thread."""
        ours = [job for source in self._membership.both for job in source.deliveries.values()]
        going_on = [job for job in ours if job.stage is RUNNING and job.runner and not job.runner.done()]
        for job in going_on:
            self._conclude_cancelled(job)
        self._reporter.left_running(going_on)


def _is_cancelling(runner: "asyncio.Task[None] | None") -> bool:
    return runner is not None and runner.cancelling() > 0
