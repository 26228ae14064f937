"""What a handler forks, and lets come back to us, ends here: it is a copy of the worker, its jobs and its connections.

Such a copy would acknowledge what its parent still runs, read jobs that nobody runs, and take the parent's replies off
the socket that both have. `subprocess` and `multiprocessing` never come back; ``os.fork()`` does, with every return and
every exception, ``sys.exit()`` among them.
"""

import os
import sys
import traceback
from contextlib import suppress

from workers.runtime.user_code import exits_in

FORKS = [0]
"""How many forks this process is away from the one that imported this. Compared by who calls a user's function."""


def _count() -> None:
    FORKS[0] += 1


os.register_at_fork(after_in_child=_count)


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
