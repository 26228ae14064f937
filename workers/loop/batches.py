"""Batch handlers, which get a list of jobs and give an outcome for each.

Only the call of the handler is shared. Each job of a batch has its own slot, heartbeat, timeout, outcome and
settlement, so all rules for deliveries hold. A job that has to begin alone is a batch of its own (`Gatherer`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.backoff import Backoff
from workers.loop.execution import ACKED, judge, raise_end
from workers.loop.handlers import UnusableAnswerError, come_to, invoker
from workers.loop.in_flight import Delivery
from workers.loop.job import Job
from workers.protocol.calls.settlement import Verdict
from workers.runtime.children import FORKS, end_child


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """A function that a program registers for lists of jobs, with the limits of a list."""

    function: Callable[[list[Job]], Any]
    size: int
    wait_s: float

    async def __call__(self, job: Job) -> object:
        """Never called; `BatchCall` is. It makes this a handler."""
        raise NotImplementedError


class BatchCall:
    """How a batch handler of a running worker is called."""

    def __init__(self, handler: BatchHandler, concurrency: int) -> None:
        self.size, self.wait_s = handler.size, handler.wait_s
        self._invoke: Callable[[Any], Any] = invoker(handler.function, concurrency)  # type: ignore[arg-type]

    async def invoke(self, job: Job) -> object:
        """Return the handler's answer for a batch of one job."""
        return (await self._answers([job]))[0]

    async def execute(
        self, jobs: Sequence[Job], backoff: Backoff, runner: "asyncio.Task[None] | None"
    ) -> Sequence[Verdict]:
        """Run the handler on ``jobs``, and return their verdicts, as `workers.loop.execution.execute` does."""
        forks = FORKS[0]
        answers: Sequence[object]
        try:
            answers = await self._answers(list(jobs))
            end_child(forks)
        except BaseException as error:  # noqa: BLE001 - what ends the runner is raised again
            raise_end(error, forks, runner)
            answers = [error] * len(jobs)
        return [
            ACKED if answer is None else judge(job, answer, backoff) for job, answer in zip(jobs, answers, strict=True)
        ]

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


@dataclass(frozen=True, slots=True)
class Batch:
    """Deliveries that run together, in the slots of all of them."""

    call: BatchCall
    jobs: Sequence[Delivery]


PerformBatch = Callable[[Batch, "asyncio.Task[None] | None"], Awaitable[float]]
"""Runs a batch in this task, as `workers.loop.slots.Perform` does with a delivery."""


class Gatherer:
    """Gathers deliveries for batch handlers, before they are queued.

    A batch is complete with ``size`` deliveries, or ``wait`` seconds after the first one, or if no slot is free, so no
    other delivery can come.
    """

    def __init__(
        self,
        call_of: Callable[[Job], BatchCall | None],
        begins_alone: Callable[[Delivery], bool],
        perform: PerformBatch,
    ) -> None:
        """``call_of`` returns the batch handler of a job, or None."""
        self.perform = perform
        self._call_of = call_of
        self._begins_alone = begins_alone
        self._waiting: dict[BatchCall, list[Delivery]] = {}
        self._timers: dict[BatchCall, asyncio.TimerHandle] = {}

    def sorted_in(
        self, deliveries: Sequence[Delivery], late: Callable[[Batch], None], *, at_once: bool
    ) -> list[Delivery | Batch]:
        """Return what may begin now. ``late`` is called with each batch that is complete because its time is over.

        ``at_once``: No slot is free.
        """
        begins: list[Delivery | Batch] = []
        for job in deliveries:
            call = self._call_of(job)
            if call is None or self._begins_alone(job):
                begins.append(job)
                continue
            waiting = self._waiting.setdefault(call, [])
            waiting.append(job)
            if len(waiting) >= call.size:
                begins.append(self._taken(call))
        for call in list(self._waiting):
            if at_once:
                begins.append(self._taken(call))
            elif call not in self._timers:
                loop = asyncio.get_running_loop()
                self._timers[call] = loop.call_later(call.wait_s, self._is_late, call, late)
        return begins

    def take_all(self) -> list[Delivery]:
        """Return the deliveries that wait, because none of them begins any more."""
        return [job for call in list(self._waiting) for job in self._taken(call).jobs]

    def _is_late(self, call: BatchCall, late: Callable[[Batch], None]) -> None:
        late(self._taken(call))

    def _taken(self, call: BatchCall) -> Batch:
        timer = self._timers.pop(call, None)
        if timer is not None:
            timer.cancel()
        return Batch(call, self._waiting.pop(call))
