"""Releases quarantined jobs one by one, faster as they settle, because a poison job has to run alone."""

import random
from collections.abc import Awaitable, Callable

import anyio

from workers.protocol.calls.group_moves import DueMoves
from workers.protocol.calls.refusals import Refusal

POLL_S = (0.02, 0.5)
"""How often released jobs are looked at: quickly while they settle, slowly while a long one runs."""


class Quarantine:
    """One group's quarantined jobs, looked after by one process."""

    def __init__(
        self,
        release: Callable[[], Awaitable[DueMoves | Refusal]],
        released: Callable[[DueMoves], None],
        *,
        jitter: float = 0.0,
    ) -> None:
        """``released`` gets each result. ``jitter``: pauses are longer by up to this fraction."""
        self._release = release
        self._released = released
        self._jitter = jitter
        self._wakes = anyio.Event()
        self._are_there = False
        self._pause_s = POLL_S[0]

    def wake(self) -> None:
        """Look at once, because jobs may be quarantined or released."""
        self._wakes.set()

    async def step(self) -> Refusal | None:
        """Let out those that may be, and wait until it is time to look again: as long as there are none, for `wake`.

        Returns why it was refused. Raises what redis-py raises. After either, there may be some.
        """
        quick, slow = POLL_S
        if not self._are_there:
            await self._wakes.wait()
            self._pause_s = quick
        self._wakes = anyio.Event()  # before the look: what is quarantined after it wakes us again
        self._are_there = True
        released = await self._release()
        if isinstance(released, Refusal):
            return released
        self._released(released)
        self._are_there = released.quarantined + released.out > 0
        self._pause_s = quick if released.jobs or released.settled else min(self._pause_s * 1.5, slow)
        if self._are_there:
            with anyio.move_on_after(self._pause_s * random.uniform(1, 1 + self._jitter)):
                await self._wakes.wait()
        return None
