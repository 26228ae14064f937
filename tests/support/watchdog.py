"""Ends a test that hangs, so that a mistake costs minutes and a report instead of the whole run."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

LONGEST_TEST_S = 300.0
_AGAIN_S = 5.0  # an event loop may swallow the first one


class TestTookTooLong(BaseException):
    """Beyond every ``except Exception``: the test is over."""

    __test__ = False


@contextmanager
def watched(longest_s: float = LONGEST_TEST_S) -> Iterator[None]:
    """Raise `TestTookTooLong` in the main thread, wherever it is, if the block takes longer than ``longest_s``."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise TestTookTooLong(f"the test took longer than {longest_s:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, longest_s, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
