"""One delivery, from its slot to its verdict: own it, announce it, execute it, conclude."""

import asyncio
from collections.abc import Iterable
from math import inf
from time import monotonic

from workers.loop.context import WorkerContext
from workers.loop.deadlines import Deadlines
from workers.loop.execution import (
    HANDED_BACK,
    REASON_TIMEOUT,
    Handler,
    Outcome,
    Verdict,
    execute,
    failed,
    invoker,
    is_async,
)
from workers.loop.heartbeat import Heartbeat
from workers.loop.job import QUEUED, Interruption, Job
from workers.loop.journal import JournalWriter
from workers.loop.settlement import Settlements
from workers.protocol.events import EventName


class Runner:
    """Executes deliveries with one handler, and hands their verdicts to the settler."""

    def __init__(
        self,
        context: WorkerContext,
        handler: Handler,
        settlements: Settlements,
        heartbeat: Heartbeat,
        journal: JournalWriter | None,
    ) -> None:
        self._membership = context.membership
        self._reporter = context.reporter
        self._backoff = context.settings.backoff
        self._invoke = invoker(handler, context.settings.concurrency)
        self._execute = context.telemetry.execute if context.telemetry else execute
        self._runs_in_threads = not is_async(handler)
        self._deadlines = Deadlines(context.membership.both, self._expire)
        self._settlements = settlements
        self._heartbeat = heartbeat
        self._journal = journal
        self._hands_back = False

    async def perform(self, job: Job) -> None:
        """Take a delivery through all steps. Every job pays for this: nothing is awaited that need not be."""
        verdict: Verdict | None = None
        began = monotonic()
        try:
            if self._is_doubtful(job, began) and not await self._heartbeat.still_owns(job):
                return
            if self._journal:
                await self._announce(self._journal, job)
                began = monotonic()  # long ago, where another handler blocked the event loop meanwhile
                if self._is_doubtful(job, began) and not await self._heartbeat.still_owns(job):
                    return
            job.begin(began)
            if job.timeout_s != inf:
                self._deadlines.watch(job)
            verdict = await self._execute(self._invoke, job, self._backoff)
        except asyncio.CancelledError:
            if job.interruption is None or _take_back_our_cancellation() > 0:
                self._conclude_cancelled(job)
                raise
        else:
            if job.interruption is not None:
                _take_back_our_cancellation()
        if job.interruption is not None or self._hands_back:
            verdict = self._reconsidered(job, verdict)
        if verdict is not None and self._settlements.add(job, verdict, began):
            await self._settlements.wait_for_room()

    # ---- the steps

    def _is_doubtful(self, job: Job, now: float) -> bool:
        """Tell whether somebody may have recovered the delivery, since it was not extended for so long."""
        return now - job.proven > self._membership.visibility_s

    async def _announce(self, journal: JournalWriter, job: Job) -> None:
        """See to it that the journal names the job even if its handler kills the process."""
        journal.note(EventName.STARTED, job)
        await journal.wait_until_sent()

    def _reconsidered(self, job: Job, verdict: Verdict | None) -> Verdict | None:
        """Return what to settle of a job that was cancelled, or None where it is not ours any more."""
        if verdict is not None and verdict.outcome is Outcome.ACK:
            return verdict  # it got to its end all the same
        if job.interruption is Interruption.LOST:
            return None
        if job.interruption is Interruption.TIMEOUT:
            error = f"ran longer than its timeout of {job.timeout_s:g} s"
            return failed(job, error, self._backoff, reason=REASON_TIMEOUT)
        # What a handler raises because it is cancelled says nothing about the job.
        return HANDED_BACK if verdict is not None and verdict.outcome is Outcome.NACK else verdict

    def _conclude_cancelled(self, job: Job) -> None:
        """Hand back what the drain deadline cancels; what anything else cancels stays pending."""
        if self._hands_back and job.interruption is not Interruption.LOST:
            self._settlements.add(job, HANDED_BACK, monotonic() if job.stage is QUEUED else job.started)

    def _expire(self, job: Job) -> None:
        """Take a job from its handler that runs longer than it may."""
        self._reporter.timed_out(job, goes_on=self._runs_in_threads)
        job.interrupt(Interruption.TIMEOUT)

    # ---- the end

    def hand_back(self, jobs: Iterable[Job]) -> None:
        """Give back what has not started; returns at once."""
        now = monotonic()
        for job in jobs:
            if job.interruption is None:
                self._settlements.add(job, HANDED_BACK, now)

    def hand_back_cancelled(self) -> None:
        """Hand back what is cancelled from now on: the drain deadline has passed."""
        self._hands_back = True

    def stop(self) -> None:
        """Expire nothing any more."""
        self._deadlines.stop()


def _take_back_our_cancellation() -> int:
    """Undo that we have cancelled the current task; return how many others cancel it, too."""
    task = asyncio.current_task()
    assert task is not None
    return task.uncancel()
