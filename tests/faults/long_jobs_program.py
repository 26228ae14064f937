"""A worker for `worker run tests.faults.long_jobs_program:worker` with jobs that last until the test opens the gate.

It appends to the file that `NOTES` names: ``start JOB PID`` for each start, and ``late SECONDS PID`` when the machine
did not run the process for a while. `GATE` names the file whose existence lets all jobs go on.
"""

import asyncio
import math
import os
import threading
import time
from pathlib import Path

from tests.support.waiting import wait_until
from workers import Job, Worker

NOTES, GATE = "LONG_JOBS_NOTES", "LONG_JOBS_GATE"
TURN_S = 0.05
LATE_S = 0.3
"""A process that did not run for so long says so."""

worker = Worker()
first = asyncio.Lock()
"""One job looks for the gate, and the others wait for that job."""


def note(what: str, value: object) -> None:
    """Append a line. Lines of several processes do not mix, because each is one write at the end of the file."""
    with Path(os.environ[NOTES]).open("a") as notes:
        notes.write(f"{what} {value} {os.getpid()}\n")


@worker.handler
async def handle(job: Job) -> None:
    """Wait for the gate."""
    note("start", job.id)
    async with first:
        await wait_until(Path(os.environ[GATE]).exists, "the gate is open", math.inf)


def watch() -> None:
    """Note when the machine did not run this process."""
    never, last = threading.Event(), time.monotonic()
    while not never.wait(TURN_S):
        now = time.monotonic()
        if now - last > LATE_S:
            note("late", round(now - last, 2))
        last = now


if NOTES in os.environ:  # a program of a test, and not a test that only reads this file
    threading.Thread(target=watch, daemon=True).start()
