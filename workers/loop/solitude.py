"""A suspect that has its last delivery runs alone in its process: what kills that has told on itself, and nobody else.

Until it has ended, or has run for a visibility timeout, nothing is begun or read beside it; and it begins when what ran
before has ended, or has run for as long. Who lasts that long is taken for one that does not kill.
"""

import asyncio
from collections.abc import Callable, Iterable

import anyio

from workers.loop.change import Change
from workers.loop.held import ENDED, RUNNING, Held, Source
from workers.runtime.clock import monotonic


class Solitude:
    """Says who may begin. `freed` is to be told of whenever a delivery has left its slot."""

    def __init__(self, sources: Iterable[Source], visibility_s: Callable[[], float]) -> None:
        self.freed = Change()
        """A delivery has left its slot, or something may begin again, or nothing is started any more."""
        self.is_kept = False
        """Somebody runs alone, or waits for it; it may have ended since: `lasts` tells. For who asks for every job."""
        self._sources = tuple(sources)
        self._visibility_s = visibility_s
        self._alone: Held | None = None
        self._waiting = 0
        self._closed = False

    def lasts(self) -> bool:
        """Tell whether nothing else is to begin now, or to be read."""
        if self.is_kept:
            self.is_kept = self._waiting > 0 or self._left_s(self._alone) > 0
        return self.is_kept

    async def may_begin(self, held: Held, *, alone: bool) -> bool:
        """Wait until ``held`` may begin; ``alone``: then nothing else, until it has ended or lasted for long enough.

        Returns False where nothing may begin any more.
        """
        if alone:
            await self._wait_for(held)
        else:
            while not self._closed and self.lasts():
                await self.freed.wait()
        return not self._closed

    async def _wait_for(self, held: Held) -> None:
        self._waiting += 1
        self.is_kept = True
        try:
            while not self._closed and (left_s := self._others_left_s(held)) > 0:
                with anyio.move_on_after(left_s):
                    await self.freed.wait()
            self._alone = held
        finally:
            self._waiting -= 1
            self.freed.notify()  # the next one that waits, if this one gives up
        self._tell_when_over(held)

    def close(self) -> None:
        """Let nobody who waits begin any more."""
        self._closed = True
        self.freed.notify()

    def _tell_when_over(self, held: Held) -> None:
        left_s = self._left_s(held)
        if left_s > 0:
            asyncio.get_running_loop().call_later(left_s, self._tell_when_over, held)
        else:
            self.freed.notify()

    def _others_left_s(self, me: Held) -> float:
        running = (held for source in self._sources for held in source.deliveries.values() if held.stage is RUNNING)
        return max((self._left_s(held) for held in (self._alone, *running) if held is not me), default=0.0)

    def _left_s(self, held: Held | None) -> float:
        """Return for how long a delivery may still turn out to be one that kills; 0 = no longer."""
        if held is None or held.stage is ENDED or not held.source.holds(held):
            return 0.0
        visibility_s = self._visibility_s()
        return max(0.0, held.started + visibility_s - monotonic()) if held.stage is RUNNING else visibility_s
