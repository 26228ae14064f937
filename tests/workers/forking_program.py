"""A user's program whose jobs start processes: ``worker run tests.workers.forking_program``."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from tests.support.knobs import stop_soon
from workers import Job, Worker

stop_soon()
worker = Worker("orders", "billing")
in_thread = Worker("orders", "billing")

FORK = multiprocessing.get_context("fork")
SLEEP = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]


def pause() -> None:
    """Wait for a signal for ever, with the handlers that were inherited."""
    while True:
        signal.pause()


# ---- children that the job ends by SIGTERM


def terminate_process() -> int | None:
    child = FORK.Process(target=pause)
    child.start()
    child.terminate()  # at once: the child may not have run a line
    child.join()
    return child.exitcode


def leave_busy_pool() -> int:
    with FORK.Pool(2) as pool:
        pool.apply_async(pause)
        pid = pool.apply(os.getpid)
    return pid and -signal.SIGTERM


def terminate_fork() -> int:
    child = os.fork()
    if not child:
        pause()
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def terminate_subprocess() -> int:
    with subprocess.Popen(SLEEP, close_fds=False, preexec_fn=lambda: None) as child:  # noqa: PLW1509 - users have it
        child.terminate()
        return child.wait()


ENDING: list[Callable[[], int | None]] = [
    terminate_process,
    leave_busy_pool,
    terminate_fork,
    terminate_subprocess,
]


# ---- children that come back to the worker

CODES = {"returns": 0, "raises": 1, "exits": 7, "exits in words": 1}
"""How a child leaves the handler, and the exit code that it ends with."""


def leave(how: str) -> None:
    if how == "raises":
        raise ValueError("in the child")
    if how == "exits":
        sys.exit(7)
    if how == "exits in words":
        sys.exit("no")


# ---- the handlers


def perform() -> None:
    for end in ENDING:
        print(f"{end.__name__}: {end()}", flush=True)  # noqa: T201
    for how in CODES:
        child = os.fork()
        if not child:
            leave(how)
            return
        print(f"{how}: {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)  # noqa: T201


@worker.handler
async def handle(_job: Job) -> None:
    perform()


@in_thread.handler
def handle_in_thread(_job: Job) -> None:
    perform()
