"""A process that a handler forks is not a second worker.

``subprocess`` and ``multiprocessing`` never return to our code. ``os.fork()`` does, with every return and every
exception, ``sys.exit()`` among them. The child would acknowledge a job that its parent still runs, so it ends there.

A child gets the signal handlers of the time before the worker, and no signal reaches it earlier. Otherwise
`Process.terminate()` of a child would stop its parent. A child keeps the parent's sockets until it ends.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio

FORKS = [0]
"""The number of forks between the process that imported this module and this one."""

_handlers: dict[signal.Signals, Any] = {}
"""The handlers before `received`."""
_mask = threading.local()
"""The signals that a thread blocked before its fork."""


@contextmanager
def received(*numbers: signal.Signals) -> Iterator[AsyncIterator[signal.Signals]]:
    """Yield signals as they come. Afterwards, and in forked children, the former handlers are in force."""
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
    _handlers.update(before)
    try:
        with anyio.open_signal_receiver(*numbers) as signals:
            yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
            _handlers.pop(number, None)


def end_child(before: int, error: BaseException | None = None) -> None:
    """End this process if it was forked since `FORKS` was ``before``, with the exit code that ``error`` demands."""
    if FORKS[0] == before:
        return
    code = 1
    try:
        code = _code_of(error)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
    finally:  # also if a signal handler raises
        os._exit(code)  # exit handlers, tasks and the locks of threads belong to the parent


def _code_of(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    with suppress(Exception):
        traceback.print_exception(error)
    return 1


def _block() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, tuple(_handlers))


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _after_in_child() -> None:
    FORKS[0] += 1
    with suppress(ValueError):  # in a subinterpreter, which handles no signals
        signal.set_wakeup_fd(-1)
        for number, handler in _handlers.items():
            signal.signal(number, handler)
    _unblock()
    _handlers.clear()


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_after_in_child)
