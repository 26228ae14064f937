"""Runs a replica as a process that obeys signals."""

import gc
import logging
import os
import signal

import anyio
from anyio.abc import TaskStatus

from reaper.service import Reaper
from reaper.settings import ReaperSettings
from reaper.web.serve import serving_health
from workers.protocol.log_fields import fields
from workers.runtime.children import received

logger = logging.getLogger(__name__)

GC_THRESHOLDS = 20_000, 5, 5
"""The ticks of a moment create some thousand objects, and free them. They do not start the garbage collector."""


async def serve(settings: ReaperSettings) -> None:
    """Run one replica until a signal ends it.

    The first SIGTERM or SIGINT hands the leases over and returns. The second one ends the process at once. Raises
    UnreachableError or UnsupportedServerError at the start.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    reaper = Reaper(settings)
    async with anyio.create_task_group() as tasks:
        await tasks.start(_obey_signals, reaper)
        async with serving_health(reaper):
            await reaper.run()
        tasks.cancel_scope.cancel()


async def _obey_signals(reaper: Reaper, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    with received(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            if reaper.is_stopping:
                logger.warning("second signal, stopping at once: %s", fields(signal=number.name))
                logging.shutdown()
                os._exit(128 + number)
            logger.info("stopping: %s", fields(signal=number.name))
            reaper.stop()
