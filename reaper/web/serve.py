"""Serves a replica's health and status page while it runs."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from reaper.service import Reaper
from workers.runtime.health_server import health_server

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


def serving_health(reaper: Reaper) -> AbstractAsyncContextManager[int | None]:
    """Serve while the block runs, if `health_port` is set. Yields the port. Raises ConfigurationError."""
    settings = reaper.settings
    return health_server(
        settings.health_host,
        settings.health_port,
        settings.redis_url,
        settings.namespace_keys.replicas,
        partial(_obstacles, reaper),
        partial(_pages, reaper),
    )


def _obstacles(reaper: Reaper) -> list[str]:
    """Return the reasons why the replica is not ready."""
    if reaper.denials:
        return [f"Redis denies a call: {why}" for why in reaper.denials]
    if not reaper.has_worked:
        return ["the replica has not registered, or does not know yet which replica holds the lease of each group"]
    return []


def _pages(reaper: Reaper, client: Redis) -> "Sequence[BaseRoute]":
    from reaper.web.app import page_routes  # an extra

    return page_routes(reaper, client)
