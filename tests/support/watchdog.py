"""Ends a test that hangs, so that a mistake costs minutes and a report instead of the whole run."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tests.support.patience import Patience, beats, scaled

IDLE_S = 150.0
"""How long neither the test nor a process of it may do anything, or get what it waits for."""
LONGEST_S = 1_200.0
"""How long a test may take that does something all the time."""
_LOOK_EVERY_S = 5.0
"""Also how soon it is ended again, where an event loop swallows the first end."""


class TestTookTooLong(BaseException):
    """Beyond every ``except Exception``: the test is over."""

    __test__ = False


class Watch:
    """Says when a test has to end, and why."""

    def __init__(self, now: float, patience: Patience, longest_s: float, got: Callable[[], object] = beats) -> None:
        self._began, self._patience, self._longest_s, self._got = now, patience, longest_s, got

    def complaint(self, now: float) -> str:
        """Return why the test is over by now; empty while it is not."""
        self._patience.is_new(now, self._got())
        if self._patience.is_over(now):
            return f"nothing has happened in this test for {self._patience.idle_s:.3g} s"
        if now - self._began >= self._longest_s:
            return f"the test took longer than {self._longest_s:g} s"
        return ""


@contextmanager
def watched(
    idle_s: float = IDLE_S, longest_s: float = LONGEST_S, *, look_every_s: float = _LOOK_EVERY_S
) -> Iterator[None]:
    """Raise `TestTookTooLong` in the main thread, wherever it is, where the block gets nowhere or takes too long."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    now = time.monotonic()
    watch = Watch(now, Patience(now, idle_s, longest_turn_s=2 * look_every_s), scaled(longest_s))

    looks: list[bool] = []  # a look may take longer than it is to the next one, which would interrupt it

    def look(_number: int, _frame: FrameType | None) -> None:
        if looks:
            return
        looks.append(True)
        try:
            complaint = watch.complaint(time.monotonic())
        finally:
            looks.clear()
        if complaint:
            raise TestTookTooLong(complaint)

    handler = signal.signal(signal.SIGALRM, look)
    timer = signal.setitimer(signal.ITIMER_REAL, look_every_s, look_every_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
