"""What signals do before a process of ours has begun its work, and after it has ended it.

A program imports this first, and nothing slow is imported here: what follows takes half a second, in which Python
itself would die of SIGTERM and SIGHUP (as process 1 of a container it would not even notice the former), and answer
Ctrl-C by a traceback. What is left is Python's own beginning, before any line of ours.
"""

import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from workers import forks

INTERRUPTED_EXIT = 130
"""Exit code after Ctrl-C, as shells know it, of whatever does not take it as the word to end in good order."""


class _Entrance:
    is_ours = False
    """A program of ours has begun here, and nobody else's, in which signals are none of our business."""
    is_service = False
    """Signals are its own business: nobody types Ctrl-C at it to interrupt it."""
    code = 0
    """Exit code where it is told to end while nothing is under way."""
    was_hung_up = False


_entrance = _Entrance()


def enter(*, services: Collection[str], ended_by_ctrl_c: Collection[str] = (), reloading: Collection[str] = ()) -> None:
    """Heed signals from now on. Commands are named by the words after the program's name, two at most.

    ``services`` are ended by SIGTERM and SIGINT alike, with exit code 0; so are ``ended_by_ctrl_c`` by SIGINT. What is
    ``reloading`` is told later that SIGHUP came (`was_hung_up`). What is ignored already stays so, as `nohup` has it.
    """
    _entrance.is_ours = True
    typed = {" ".join(sys.argv[1:2]), " ".join(sys.argv[1:3])}
    _entrance.is_service = not typed.isdisjoint(services)
    is_orderly = _entrance.is_service or not typed.isdisjoint(ended_by_ctrl_c)
    _entrance.code = 0 if is_orderly else INTERRUPTED_EXIT
    _heed(signal.SIGINT, _leave)
    if _entrance.is_service:
        _heed(signal.SIGTERM, _leave)
    if not typed.isdisjoint(reloading):
        _heed(signal.SIGHUP, _note_hang_up)


def _heed(number: signal.Signals, handler: Any) -> None:
    before = signal.getsignal(number)
    if before in (signal.SIG_DFL, signal.default_int_handler):
        forks.handles(number, before)
        signal.signal(number, handler)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(_entrance.code)


def _note_hang_up(_number: int, _frame: FrameType | None) -> None:
    _entrance.was_hung_up = True


def was_hung_up() -> bool:
    """Tell whether SIGHUP came before anybody listened for it."""
    return _entrance.was_hung_up


def leave_with(code: int) -> None:
    """Have a signal that comes after the work end the process with ``code``."""
    _entrance.code = code


@contextmanager
def interruptible() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt in this block, wherever it is; else, and in services, nothing."""
    is_meant = _entrance.is_ours and not _entrance.is_service and threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not is_meant or not callable(before):  # ignored, or set by somebody who is not Python
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
