"""Serves a replica's health and status page while it runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from reaper.service import Reaper
from workers.runtime.health_server import check_installed, health_server


@asynccontextmanager
async def serving_health(reaper: Reaper) -> AsyncIterator[int | None]:
    """Serve while the block runs, if `health_port` is set; yields the port. Raises ConfigurationError."""
    settings = reaper.settings
    if settings.health_port is None:
        yield None
        return
    check_installed()
    from reaper.web.app import replica_app  # an extra

    async with health_server(
        settings.health_host, settings.health_port, lambda pulse: replica_app(reaper, pulse)
    ) as port:
        yield port
