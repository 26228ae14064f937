"""Signals while a program is still being imported. A program imports this module first, and it imports nothing slow.

The imports take half a second. Without this module, process 1 of a container would ignore SIGTERM in that time, SIGHUP
would end a replica, and Ctrl-C would print a traceback.
"""

import os
import signal
import sys
from collections.abc import Collection
from types import FrameType
from typing import Any

from workers import forks

INTERRUPTED_EXIT = 130
"""Exit code after Ctrl-C, as in shells, of every command but a service."""


_is_program = False


def is_program() -> bool:
    """Tell whether this process was started as a program of ours, and so is ours to end."""
    return _is_program


def enter(*, services: Collection[str]) -> None:
    """Set the handlers. ``services``: the first words of commands that SIGTERM and SIGINT end with exit code 0.

    A signal that is ignored already stays ignored, as `nohup` expects it.
    """
    global _is_program  # noqa: PLW0603
    _is_program = True
    is_service = not {" ".join(sys.argv[1:2]), " ".join(sys.argv[1:3])}.isdisjoint(services)
    _handle(signal.SIGINT, _leave if is_service else _interrupt)
    if is_service:
        _handle(signal.SIGTERM, _leave)
        _handle(signal.SIGHUP, _do_nothing)


def _handle(number: signal.Signals, handler: Any) -> None:
    before = signal.getsignal(number)
    if before in (signal.SIG_DFL, signal.default_int_handler):
        forks.handles(number, before)
        signal.signal(number, handler)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED_EXIT)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. Programs that this process starts would inherit SIG_IGN."""


def has_entered() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from now on, unless the command is a service."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)
