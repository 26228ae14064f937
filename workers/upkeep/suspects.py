"""Lets suspects out one by one, faster as they settle: a poison job among them is to run alone."""

import random
from collections.abc import Awaitable, Callable

import anyio

from workers.protocol.calls.refusals import Refusal
from workers.protocol.calls.upkeep import Released

POLL_S = (0.02, 0.5)
"""How often released suspects are looked at: quickly while they settle, slowly while a long one runs."""


class Suspects:
    """One group's suspects, looked after by one process."""

    def __init__(
        self,
        release: Callable[[], Awaitable[Released | Refusal]],
        released: Callable[[Released], None],
        *,
        jitter: float = 0.0,
    ) -> None:
        """``released`` gets each result. ``jitter``: pauses are longer by up to this fraction."""
        self._release = release
        self._released = released
        self._jitter = jitter
        self._parked = anyio.Event()
        self._are_there = False
        self._pause_s = POLL_S[0]

    def wake(self) -> None:
        """Look at once: some may be parked, or out."""
        self._parked.set()

    async def step(self) -> Refusal | None:
        """Let out those that may be, and wait until it is time to look again: as long as there are none, for `wake`.

        Returns why it was refused. Raises what redis-py raises. After either, there may be some.
        """
        quick, slow = POLL_S
        if not self._are_there:
            await self._parked.wait()
            self._pause_s = quick
        self._parked = anyio.Event()  # before the look: what is parked after it wakes us again
        self._are_there = True
        released = await self._release()
        if isinstance(released, Refusal):
            return released
        self._released(released)
        self._are_there = released.parked + released.out > 0
        self._pause_s = quick if released.jobs or released.settled else min(self._pause_s * 1.5, slow)
        if self._are_there:
            with anyio.move_on_after(self._pause_s * random.uniform(1, 1 + self._jitter)):
                await self._parked.wait()
        return None
