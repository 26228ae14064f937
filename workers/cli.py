"""The command ``worker``."""

import logging
import os
import sys
import threading
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import click

from workers.health import WorkerCondition, serving_health
from workers.program import clashing_folder, load_worker, warning_about
from workers.runtime.event_loop import run_in
from workers.runtime.garbage import collect_seldom
from workers.runtime.logs import log_to_stderr
from workers.runtime.options import Program, errors_as_sentences, examples, log_options, settings_options
from workers.runtime.printing import show_crashes
from workers.runtime.service_manager import reporting_to_service_manager
from workers.settings import WorkerSettings
from workers.telemetry.setup import exported
from workers.worker import Worker

logger = logging.getLogger(__name__)

FORCED_EXIT = 1
"""Exit code where a second signal ended the worker before everything was done."""
THREADS_END_S = 0.5
"""How long threads that have nothing to do may take to end."""


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("worker run shop:worker --concurrency 32"),
)
@click.version_option(package_name="stream-reaper")
def main() -> None:
    """Consume jobs from Redis Streams. Exit code 2: words, settings or Redis do not let it, and a line says why."""
    show_crashes()


@main.command(
    epilog=examples("worker run shop:worker", "worker run shop.jobs:worker --config worker.toml --health-port 8081")
)
@click.argument("program", metavar="PACKAGE.MODULE:WORKER")
@settings_options(WorkerSettings)
@log_options
def run(program: str, config: Path | None, log_level: str, log_format: str, **flags: Any) -> None:
    """Run the worker that PACKAGE.MODULE defines, until SIGTERM or SIGINT; a second signal ends it at once.

    Settings: flags, then the environment, then the file, then the arguments of Worker(…) in the program. Exit code 0 it
    was told to end, and has settled or handed back its jobs; 1 a second signal cut that short; 2 it could not begin.
    """
    log_to_stderr(logging.getLevelName(log_level.upper()), log_format)
    with errors_as_sentences():
        folder = Path.cwd()
        clash = clashing_folder(folder)
        if clash:
            logger.warning("%s", warning_about(clash))
        worker = load_worker(program, folder)
        worker.configure(flags=flags, file=config)
        with exported("worker", shows_metrics=worker.settings.health_port is not None):
            run_in(worker.settings.loop, _run, worker)
    _exit(FORCED_EXIT if worker.was_forced else 0)


async def _run(worker: Worker) -> None:
    collect_seldom()
    async with serving_health(worker), reporting_to_service_manager(partial(WorkerCondition, worker)):
        await worker.run(handle_signals=True)


def _exit(code: int) -> None:
    """Exit, also where a plain handler still runs in a thread: nobody can stop it, and Python would wait for it."""
    deadline = monotonic() + THREADS_END_S
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - monotonic()))
            if thread.is_alive():
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
    sys.exit(code)
