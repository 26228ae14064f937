"""Ends handlers that run longer than they may. One timer for all jobs: it stands at the earliest deadline it knows of.

A job costs nothing here unless it has a timeout, and then no more than a comparison: a timer is only set where a job
has to end before the one that is set. It looks at all that run when it fires.
"""

import asyncio
from collections.abc import Callable, Iterable
from math import inf

from workers.loop.held import RUNNING, Held, Source
from workers.runtime.clock import monotonic


class Deadlines:
    """Calls ``expire`` in the event loop for each job whose time is up, once."""

    def __init__(self, sources: Iterable[Source], expire: Callable[[Held], None]) -> None:
        self._sources = tuple(sources)
        self._expire = expire
        self._next = inf
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, held: Held) -> None:
        """Take a job into account that has begun and has a timeout."""
        deadline = held.deadline
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
        now, due, following = monotonic(), list[Held](), inf
        for source in self._sources:
            for held in source.deliveries.values():
                if held.stage is not RUNNING or held.interruption is not None:
                    continue
                if held.is_overdue(now):
                    due.append(held)
                else:
                    following = min(following, held.deadline)
        self._set(following)
        for held in due:
            self._expire(held)
