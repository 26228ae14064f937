"""The command ``worker``."""

import asyncio
import gc
import logging
import os
import sys
import threading
import time
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import click

from workers.program import load_worker
from workers.protocol.errors import HandlerExitError
from workers.runtime.event_loop import run_in_loop
from workers.runtime.health_server import health_server
from workers.runtime.logs import log_to_stderr
from workers.runtime.options import (
    NEGATIVE_EXIT,
    Program,
    errors_as_sentences,
    examples,
    help_end,
    log_options,
    settings_options,
)
from workers.settings import WorkerSettings
from workers.telemetry.setup import exported
from workers.worker import Worker

logger = logging.getLogger(__name__)

END_S = 2.0
"""How long threads, tasks and child processes that handlers left may take to end, once the worker has stopped."""


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("worker run shop:worker --concurrency 32"),
)
@click.version_option(package_name="stream-reaper")
def main() -> None:
    """Run workers that consume jobs from Redis Streams."""


@main.command(
    epilog=help_end(
        "worker run shop:worker",
        "worker run shop.jobs:worker --config worker.toml --health-port 8081",
        ok="stopped by SIGTERM or SIGINT, and all jobs are settled or handed back",
        no="a second signal ended it, or a handler raised SystemExit",
    )
)
@click.argument("program", metavar="PACKAGE.MODULE:WORKER")
@settings_options(WorkerSettings)
@log_options
def run(program: str, config: Path | None, log_level: str, log_format: str, **flags: Any) -> None:
    """Run the worker that PACKAGE.MODULE defines.

    SIGTERM or SIGINT stops it after the running jobs, and a second signal at once. Flags override the environment, the
    environment overrides the file, and the file overrides the arguments of Worker(…).
    """
    log_to_stderr(log_level, log_format)
    with errors_as_sentences():
        worker = load_worker(program, Path.cwd())
        worker.configure(flags=flags, file=config)
        gc.freeze()  # modules stay loaded, so full collections do not visit them
        code = _work(worker)
    sys.exit(code)


def _work(worker: Worker) -> int:
    """Run the worker until its end, and return the exit code."""
    try:
        return run_in_loop(_run, worker)
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError):
        logger.exception("a task of the program stopped the worker")
        return NEGATIVE_EXIT


async def _run(worker: Worker) -> int:
    code = NEGATIVE_EXIT
    try:
        with exported("worker", shows_metrics=worker.settings.health_port is not None):
            async with serving_health(worker):
                await worker.run(handle_signals=True)
        code = NEGATIVE_EXIT if worker.process and worker.process.forced else 0
    except HandlerExitError:  # it is logged with its job
        return code
    finally:
        if worker.process and worker.process.has_joined:
            threading.Thread(target=_end, args=(code,), daemon=True).start()
    return code


def serving_health(worker: Worker) -> AbstractAsyncContextManager[int | None]:
    """Serve the worker's health while the block runs, if `health_port` is set. Yields the port."""
    settings = worker.settings
    host, port = settings.health_host, settings.health_port
    return health_server(host, port, settings.redis_url, settings.keys.stream, partial(_obstacles, worker))


def _obstacles(worker: Worker) -> list[str]:
    return worker.process.obstacles() if worker.process else ["the worker has not begun to join its group"]


def _end(code: int) -> None:
    """End this process soon. Python itself waits without end for threads, tasks and children."""
    time.sleep(END_S)
    logger.warning("process exits without waiting for threads, tasks and child processes of the program")
    sys.stdout.flush()
    logging.shutdown()
    os._exit(code)
