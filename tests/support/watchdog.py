"""Ends a test that hangs, so that a mistake costs minutes and a report instead of the whole run."""

import signal
import threading
import time
from collections.abc import Iterator
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


@contextmanager
def watched() -> Iterator[None]:
    """Raise `TestTookTooLong` in the main thread, wherever it is, where the block gets nowhere or takes too long."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    began = time.monotonic()
    patience = Patience(began, IDLE_S, longest_turn_s=2 * _LOOK_EVERY_S)
    looks: list[bool] = []  # a look may take longer than it is to the next one, which would interrupt it

    def look(_number: int, _frame: FrameType | None) -> None:
        if looks:
            return
        looks.append(True)
        try:
            now = time.monotonic()
            patience.is_new(now, beats())
            is_idle = patience.is_over(now)
        finally:
            looks.clear()
        if is_idle:
            raise TestTookTooLong(f"nothing has happened in this test for {patience.idle_s:.3g} s")
        if now - began >= scaled(LONGEST_S):
            raise TestTookTooLong(f"the test took longer than {scaled(LONGEST_S):g} s")

    handler = signal.signal(signal.SIGALRM, look)
    timer = signal.setitimer(signal.ITIMER_REAL, _LOOK_EVERY_S, _LOOK_EVERY_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
