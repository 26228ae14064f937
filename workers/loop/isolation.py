"""Runs quarantined jobs alone (rule W3 of docs/protocol.md). If the process dies then, the cause is known.

A quarantined job begins once all earlier jobs have ended, or have run for a visibility timeout, other quarantined jobs
included. A job that runs that long does not kill the process. No other job begins or is read until Redis has answered
the settlement of the quarantined job, or the job has run for a visibility timeout. If the process dies before the
answer, even a job that has ended counts as the cause.
"""

import asyncio
from collections.abc import Callable, Iterable
from itertools import chain, takewhile

import anyio

from workers.loop.in_flight import QUEUED, RUNNING, Delivery, Source
from workers.loop.notifier import Notifier
from workers.runtime.clock import monotonic


class Isolation:
    """Decides which delivery may begin. Notify `freed` whenever a delivery has left its slot."""

    def __init__(self, sources: Iterable[Source], visibility_s: Callable[[], float]) -> None:
        self.freed = Notifier()
        """A delivery has left its slot, a job may begin again, or no job is started any more."""
        self.is_kept = False
        """Quarantined jobs run or wait. A check of it is cheap. `lasts` also notices that they were settled."""
        self._sources = tuple(sources)
        self._visibility_s = visibility_s
        self._exclusive: list[Delivery] = []
        """Quarantined jobs that wait or run, or were settled since the last look, in the order of their turns."""
        self._closed = False

    def lasts(self) -> bool:
        """Return whether no other job may begin or be read now."""
        if self.is_kept:
            self._exclusive = [job for job in self._exclusive if self._left_s(job) > 0]
            self.is_kept = bool(self._exclusive)
        return self.is_kept

    async def may_begin(self, job: Delivery, *, alone: bool) -> bool:
        """Wait until ``job`` may begin, with ``alone`` as a quarantined job.

        Returns False if no job may begin any more.
        """
        if alone:
            await self._wait_for_others(job)
        else:
            while not self._closed and self.lasts():
                await self.freed.wait()
        return not self._closed

    async def _wait_for_others(self, job: Delivery) -> None:
        self._exclusive.append(job)
        self.is_kept = True
        try:
            while not self._closed and (left_s := self._others_left_s(job)) > 0:
                with anyio.move_on_after(left_s):
                    await self.freed.wait()
        except BaseException:
            self._exclusive = [one for one in self._exclusive if one is not job]
            self.freed.notify()
            raise
        self._notify_when_over(job)

    def close(self) -> None:
        """Let no waiting job begin any more."""
        self._closed = True
        self.freed.notify()

    def _notify_when_over(self, job: Delivery) -> None:
        left_s = self._left_s(job)
        if left_s > 0:
            asyncio.get_running_loop().call_later(left_s, self._notify_when_over, job)
        else:
            self.freed.notify()

    def have_settled(self) -> None:
        """Note that settlements were answered. Jobs that wait for a quarantined job may begin now."""
        if self.is_kept:
            self.freed.notify()

    def _others_left_s(self, job: Delivery) -> float:
        """Return for how long ``job`` waits for running jobs, and for quarantined jobs with an earlier turn."""
        running = (one for source in self._sources for one in source.deliveries.values() if one.stage is RUNNING)
        earlier = takewhile(lambda one: one is not job, self._exclusive)
        return max(map(self._left_s, chain(running, earlier)), default=0.0)

    def _left_s(self, job: Delivery) -> float:
        """Return for how long a delivery may still turn out to kill the process, or 0."""
        if not job.source.holds(job):
            return 0.0
        visibility_s = self._visibility_s()
        return visibility_s if job.stage is QUEUED else max(0.0, job.started + visibility_s - monotonic())
