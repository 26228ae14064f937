"""A process that a handler forks ends where it would come back to us: it would acknowledge what its parent still runs.

`subprocess` and `multiprocessing` never come back. ``os.fork()`` does, with every return and every exception,
``sys.exit()`` among them. What such a process has of the worker's until then, `workers.forks` takes away.
"""

import asyncio
import os
import sys
import traceback
from contextlib import suppress
from functools import partial

from workers.forks import FORKS, runs_in
from workers.runtime.user_code import exits_in

__all__ = ["FORKS", "end_child", "ends_in_children"]


def ends_in_children(loop: asyncio.AbstractEventLoop) -> None:
    """End each process that is forked from now on when it continues with ``loop``, the loop of its parent."""
    runs_in(loop, partial(end_child, -1))


def end_child(before: int, error: BaseException | None = None) -> None:
    """End this process where it was forked since `FORKS` was ``before``, as what it returned or raised says."""
    if FORKS[0] == before:
        return
    code = 0
    try:
        code = _code_of(error)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
    finally:
        os._exit(code)  # nothing else may run: exit handlers, other tasks and other threads' locks are the parent's


def _code_of(error: BaseException | None) -> int:
    if error is None:
        return 0
    exits = exits_in(error)
    if not exits or not isinstance(exits[0], SystemExit):
        with suppress(Exception):
            traceback.print_exception(error)
        return 1
    code = exits[0].code
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    with suppress(Exception):
        sys.stderr.write(f"{code}\n")
    return 1
