"""An event loop whose clock jumps to the next timer whenever the loop is idle, so that hours pass in no time.

``anyio.run(main, backend_options={"loop_factory": VirtualTimeLoop})`` needs no change in the code under test, which
must take its time from the loop (`anyio.current_time`, `anyio.sleep`, deadlines) or from `monotonic`. The same program
takes the same steps at the same instants each time. It is for programs without sockets, because a pending reply does
not stop the clock.
"""

import asyncio
import math
import selectors
from typing import Any

from tests.support.patience import PATIENCE_S, scaled
from workers.runtime.clock import going_by

STUCK_AFTER_S = PATIENCE_S
"""Seconds of real time in which another thread must wake a loop that has no timer left."""


MOST_TURNS = 200_000
"""Turns of the loop at one instant: some seconds of real time. Who needs more asks again and again, and never waits."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at ``time() == 0``.

    Raises RuntimeError if the program waits for an event that never comes, or goes round without end, so that time
    never passes.
    """

    def __init__(self) -> None:
        self._selector_of_time = _JumpingSelector()
        super().__init__(self._selector_of_time)

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._selector_of_time.now

    def run_forever(self) -> None:
        """Run. Until the end, this clock is the one of the whole program."""
        with going_by(self.time):
            super().run_forever()


VIRTUAL_TIME: dict[str, Any] = {"loop_factory": VirtualTimeLoop}
"""Options of anyio's asyncio backend: ``anyio.run(…, backend_options=VIRTUAL_TIME)``, or ``("asyncio", VIRTUAL_TIME)``
as `anyio_backend`."""


class _JumpingSelector(selectors.DefaultSelector):
    """Let the clock jump instead of a sleep until the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns += 1
        if self._turns > MOST_TURNS:
            self._turns = 0  # a task that is cancelled by this has to end, too
            raise RuntimeError(f"{MOST_TURNS} turns at one instant: somebody never waits, and time never passes")
        if timeout is None:
            self._turns = 0
            ready = super().select(scaled(STUCK_AFTER_S))
            if not ready:
                raise RuntimeError("nothing is scheduled, and nobody calls: the program waits for ever")
            return ready
        ready = super().select(0)
        if not ready and timeout > 0:
            self._turns = 0
            # A little past the timer, because asyncio adds a resolution to its clock that vanishes in a large float.
            self.now = math.nextafter(self.now + timeout, math.inf)
        return ready
