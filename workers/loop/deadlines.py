"""Ends handlers that run longer than they may. One timer for all jobs: it stands at the earliest deadline it knows of.

A job costs nothing here unless it has a timeout, and then no more than a comparison: a timer is only set where a job
has to end before the one that is set. It looks at all that run when it fires.
"""

import asyncio
from collections.abc import Callable, Iterable
from math import inf
from time import monotonic

from workers.loop.job import RUNNING, Job, Source


class Deadlines:
    """Calls ``expire`` in the event loop for each job whose time is up, once."""

    def __init__(self, sources: Iterable[Source], expire: Callable[[Job], None]) -> None:
        self._sources = tuple(sources)
        self._expire = expire
        self._next = inf
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, job: Job) -> None:
        """Take a job into account that has begun and has a timeout."""
        deadline = job.started + job.timeout_s
        if deadline < self._next:
            self._set(deadline)

    def stop(self) -> None:
        """Expire nothing any more."""
        self._set(inf)

    def _set(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = deadline
        # The event loop's clock is the monotonic one that `started` comes from.
        self._timer = asyncio.get_running_loop().call_at(deadline, self._look) if deadline < inf else None

    def _look(self) -> None:
        now, due, following = monotonic(), list[Job](), inf
        for source in self._sources:
            for job in source.deliveries.values():
                if job.stage is not RUNNING or job.interruption is not None:
                    continue
                if job.is_overdue(now):
                    due.append(job)
                else:
                    following = min(following, job.started + job.timeout_s)
        self._set(following)
        for job in due:
            self._expire(job)
