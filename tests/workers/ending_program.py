"""A user's program whose jobs keep a process from ending: ``worker run tests.workers.ending_program:NAME``.

Each job says in field ``do`` what it does, and in ``gate`` at which gate it waits.
"""

import asyncio
import multiprocessing
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
from anyio import to_thread

from tests.support.gate import wait_at
from tests.support.knobs import stop_soon
from workers import Job, Reject, Report, Worker

stop_soon()
worker = Worker("orders", "billing")
in_thread = Worker("orders", "billing")
reporting = Worker("orders", "billing")


# ---- threads and tasks that keep a process alive


def block(job: Job) -> None:
    """Wait, where nobody can stop it."""
    print(f"started {job.id}", flush=True)  # noqa: T201
    wait_at(job.fields[b"gate"].decode())
    print("the gate was open", flush=True)  # noqa: T201


async def wait_for_thread(job: Job) -> None:
    await asyncio.to_thread(block, job)


async def wait_for_anyio(job: Job) -> None:
    await to_thread.run_sync(block, job)


async def refuse_cancellation(job: Job) -> None:
    print(f"started {job.id}", flush=True)  # noqa: T201
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def leave_thread(job: Job) -> None:
    threading.Thread(target=block, args=(job,), name="left by a job").start()


async def leave_task(job: Job) -> None:
    KEPT.append(asyncio.create_task(refuse_cancellation(job)))


async def leave_process(job: Job) -> None:
    multiprocessing.get_context("fork").Process(target=block, args=(job,)).start()


KEPT: list[object] = []
WAITING: list[Callable[[Job], Coroutine[Any, Any, None]]] = [
    wait_for_thread,
    wait_for_anyio,
    refuse_cancellation,
]
LEAVING: list[Callable[[Job], Coroutine[Any, Any, None]]] = [leave_thread, leave_task, leave_process]


# ---- the ends of a process


async def exit_by_itself(_job: Job) -> None:
    sys.exit(0)


async def be_interrupted(_job: Job) -> None:
    raise KeyboardInterrupt


async def exit_in_group(_job: Job) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asyncio.to_thread, sys.exit, 0)


async def exit_in_task(_job: Job) -> None:
    async def leave() -> None:
        sys.exit(0)

    await asyncio.create_task(leave())


async def cancel_all_tasks(_job: Job) -> None:
    for task in asyncio.all_tasks():
        task.cancel()


EXITING: list[Callable[[Job], Coroutine[Any, Any, None]]] = [
    exit_by_itself,
    be_interrupted,
    exit_in_group,
]

BY_NAME = {function.__name__: function for function in [*WAITING, *LEAVING, *EXITING, exit_in_task, cancel_all_tasks]}


# ---- the handlers


@worker.handler
async def handle(job: Job) -> None:
    await BY_NAME[job.fields[b"do"].decode()](job)


@in_thread.handler
def handle_in_thread(job: Job) -> None:
    if job.fields[b"do"] == b"exit":
        sys.exit(0)
    block(job)


@reporting.handler
async def reject(_job: Job) -> None:
    raise Reject


@reporting.on("dead_lettered")
async def exit_in_callback(_report: Report) -> None:
    sys.exit(0)
