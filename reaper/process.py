"""Runs a replica as a process of its own: start-up checks, signals, reload."""

import logging
import os
import signal
from collections.abc import Callable

import anyio
from anyio.abc import TaskStatus

from reaper.service import Reaper
from reaper.settings import ReaperSettings
from reaper.web.serve import serving_health
from workers.protocol.errors import ConfigurationError
from workers.protocol.log_fields import fields
from workers.runtime.children import received
from workers.runtime.event_loop import collect_seldom

logger = logging.getLogger(__name__)

Load = Callable[[], ReaperSettings]


async def serve(settings: ReaperSettings, load: Load) -> None:
    """Run one replica until a signal ends it.

    The first SIGTERM or SIGINT hands the leases over and returns. The second one ends the process at once. SIGHUP reads
    the settings again by ``load``. Raises UnreachableError or UnsupportedServerError at the start.
    """
    collect_seldom()
    reaper = Reaper(settings)
    async with anyio.create_task_group() as tasks:
        await tasks.start(_obey_signals, reaper, load)
        async with serving_health(reaper):
            await reaper.run()
        tasks.cancel_scope.cancel()


async def _obey_signals(
    reaper: Reaper, load: Load, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    stopping = False
    with received(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGHUP:
                _reload(reaper, load)
            elif stopping:
                logger.warning("second signal, stopping at once: %s", fields(signal=number.name))
                logging.shutdown()
                os._exit(128 + number)
            else:
                logger.info("stopping: %s", fields(signal=number.name))
                stopping = True
                reaper.stop()


def _reload(reaper: Reaper, load: Load) -> None:
    """Read the settings again. If one is wrong, the old ones stay in force."""
    try:
        settings = load()
    except ConfigurationError as error:
        for sentence in error.args:
            logger.error(  # noqa: TRY400 - no traceback
                "cannot reload settings, the old ones stay in force: %s", fields(cause=sentence)
            )
        return
    reaper.reload(settings)
