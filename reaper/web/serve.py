"""Serves a replica's health and status page while it runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from reaper.service import Reaper
from reaper.web.actions import read_token
from workers.protocol.health import Pulse, check_installed, health_server


@asynccontextmanager
async def serving_health(reaper: Reaper) -> AsyncIterator[int | None]:
    """Serve while the block runs, if `health_port` is set; yields the port. Raises ConfigurationError."""
    settings = reaper.settings
    token = read_token(settings.actions_token_file)
    if settings.health_port is None:
        yield None
        return
    check_installed()
    from reaper.web.app import replica_app  # an extra

    pulse = Pulse()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pulse.run)
        async with health_server(
            settings.health_host, settings.health_port, lambda: replica_app(reaper, pulse, token)
        ) as port:
            yield port
        tasks.cancel_scope.cancel()
