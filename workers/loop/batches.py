"""Batch handlers, which get a list of jobs and give an outcome for each.

Only the call of the handler is shared. Each job of a batch has its own slot, heartbeat, timeout, outcome and
settlement, so all rules for deliveries hold. Its slot waits until the batch is complete and the handler has ended.
"""

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.loop.execution import InterruptedJobError
from workers.loop.handlers import UnusableAnswerError, come_to, invoker
from workers.loop.job import Job
from workers.runtime.children import FORKS, end_child
from workers.runtime.user_code import exits_in


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """A function that a program registers for lists of jobs, with the limits of a list."""

    function: Callable[[list[Job]], Any]
    size: int
    wait_s: float

    async def __call__(self, job: Job) -> object:
        """Never called; `BatchCall` is. It makes this a handler."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class _Batch:
    """Jobs that run together, with the outcomes that their slots wait for."""

    jobs: "list[tuple[Job, asyncio.Future[object]]]" = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    task: "asyncio.Task[None] | None" = None
    is_stopped: bool = False

    async def stop(self) -> None:
        """Stop the handler if it runs, and wait for its end, because one of the jobs has to stop."""
        if self.task is not None and not self.task.done():
            if not self.is_stopped:
                self.is_stopped = True
                self.task.cancel()
            await asyncio.wait([self.task])


class BatchCall:
    """Gathers jobs for a batch handler of a running worker, and calls it.

    A batch is complete with ``size`` jobs, or with a job in every slot, or ``wait`` seconds after the first job.
    """

    def __init__(self, handler: BatchHandler, concurrency: int) -> None:
        self.begins_alone: Callable[[Any], bool] = lambda _job: True
        """Returns whether a job is a batch of its own. The worker sets it."""
        self._size, self._wait_s = min(handler.size, concurrency), handler.wait_s
        self._invoke: Callable[[Any], Any] = invoker(handler.function, concurrency)  # type: ignore[arg-type]
        self._context = contextvars.copy_context()
        self._gathered: _Batch | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def invoke(self, job: Job) -> object:
        """Return the outcome of a job, after its batch has run."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[object] = loop.create_future()
        if self.begins_alone(job):
            batch = _Batch([(job, outcome)])
            self._begin(batch)
        else:
            batch = self._gathered = self._gathered or _Batch()
            batch.jobs.append((job, outcome))
            if len(batch.jobs) >= self._size:
                self._begin(batch)
            elif batch.timer is None:
                batch.timer = loop.call_later(self._wait_s, self._begin, batch)
        try:
            return await outcome
        except asyncio.CancelledError:
            await batch.stop()
            raise

    def _begin(self, batch: _Batch) -> None:
        if batch is self._gathered:
            self._gathered = None
        if batch.timer is not None:
            batch.timer.cancel()
        # In the context of the worker, because the context of a job has the span of that job alone.
        batch.task = asyncio.get_running_loop().create_task(self._run(batch), context=self._context.copy())
        self._tasks.add(batch.task)
        batch.task.add_done_callback(self._tasks.discard)

    async def _run(self, batch: _Batch) -> None:
        batch.jobs = [(job, outcome) for job, outcome in batch.jobs if not outcome.done()]
        if not batch.jobs:
            return
        forks = FORKS[0]
        answers: Sequence[object]
        try:
            answers = await self._answers([job for job, _ in batch.jobs])
            end_child(forks)
        except BaseException as error:  # noqa: BLE001 - each job concludes it
            end_child(forks, error)
            answers = [error] * len(batch.jobs)
        for (_, outcome), answer in zip(batch.jobs, answers, strict=True):
            if outcome.done():
                continue
            if batch.is_stopped:  # a handler that had to stop is never acknowledged (rule W1)
                outcome.set_exception(InterruptedJobError())
            elif isinstance(answer, BaseException) and exits_in(answer):
                outcome.set_exception(answer)
            else:
                outcome.set_result(answer)

    async def _answers(self, jobs: list[Job]) -> Sequence[object]:
        """Return the handler's answer for each job. Raises what the handler raises, and UnusableAnswerError."""
        answer = await come_to(await self._invoke(jobs))
        if answer is None or isinstance(answer, BaseException):
            return [answer] * len(jobs)
        if not isinstance(answer, list | tuple) or len(answer) != len(jobs):
            what = f"{len(answer)} outcomes" if isinstance(answer, list | tuple) else type(answer).__qualname__
            raise UnusableAnswerError(
                f"the batch handler returned {what} for {len(jobs)} jobs. Return None, or a list with one outcome for "
                "each job, in their order."
            )
        return [None if one is None else await come_to(one) for one in answer]
