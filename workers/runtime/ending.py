"""Ends a process although threads, tasks or children of the user's program still run.

Python waits for threads and child processes before it ends, and an event loop for its tasks: for ever, if one hangs.
"""

import logging
import os
import sys
import threading
import time

from workers.protocol.log_fields import fields
from workers.runtime.entrance import is_program

logger = logging.getLogger(__name__)

IDLE_END_S = 0.5
"""How long threads and tasks that have nothing to do may take to end."""
FLUSH_S = 1.0
"""How long the last log lines may take: a thread that hangs may hold a lock of `logging`."""


def end_within(left_s: float, code: int) -> None:
    """Let this process end by itself for ``left_s`` seconds (at least `IDLE_END_S`), then end it. Returns at once."""
    if is_program():
        threading.Thread(target=_end, args=(left_s, code), name="end of the process", daemon=True).start()


def _end(left_s: float, code: int) -> None:
    time.sleep(IDLE_END_S)
    if left_s > IDLE_END_S:
        logger.info("process exits soon: %s", fields(within_s=round(left_s - IDLE_END_S), waits_for=_what_runs()))
        time.sleep(left_s - IDLE_END_S)
    last = threading.Thread(target=_flush, daemon=True)
    last.start()
    last.join(FLUSH_S)
    os._exit(code)


def _what_runs() -> str:
    main = threading.main_thread()
    names = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main]
    return f"threads {', '.join(names)}" if names else "tasks, child processes or exit handlers"


def _flush() -> None:
    logger.warning("process exits without waiting: %s", fields(waits_for=_what_runs()))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
