"""The health of a worker process, over HTTP (`workers.runtime.health_server`)."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from workers.loop.in_flight import RUNNING
from workers.protocol.connection import commands_client
from workers.runtime.clock import monotonic
from workers.runtime.health_server import READY_TIMEOUT_S, Pulse, health_server, make_app, probe_routes
from workers.runtime.settings import to_ms
from workers.worker import Worker

if TYPE_CHECKING:
    from starlette.applications import Starlette

LIVENESS_TIMEOUT_S = 60.0
"""`/livez` fails once the event loop has not answered for this long, for example while an `async` handler blocks it."""


class WorkerVitals:
    """The answers over HTTP, given from another thread. ``client`` is the health server's own."""

    def __init__(self, worker: Worker, pulse: Pulse, client: Redis) -> None:
        self._worker = worker
        self._pulse = pulse
        self._client = client

    def ailments(self) -> Sequence[str]:
        """The reason to restart the process. A handler that blocks the loop for too long counts as hung."""
        return self._pulse.ailments(LIVENESS_TIMEOUT_S)

    async def obstacles(self) -> Sequence[str]:
        """Ready: the worker has read from its group, Redis answers and rejects no call, and it is not stopping."""
        process = self._worker.process
        if process is not None and process.is_stopping:
            return ["the worker is stopping"]
        if process is not None and process.refusals:
            return [f"Redis refuses: {why}" for why in process.refusals]
        if process is None or not process.has_joined:
            return ["the group is not joined yet"]
        if not process.has_worked:
            return ["the worker has not read from its group yet"]
        try:
            await self._client.ping()
        except (RedisError, OSError) as error:
            return [f"Redis does not answer: {error}"]
        return []

    async def status(self) -> Mapping[str, Any]:
        """Return what the worker is doing."""
        worker, process = self._worker, self._worker.process
        settings = worker.settings
        found: dict[str, Any] = {"status": "starting", "stream": settings.stream, "group": settings.group}
        if process is None or not process.has_joined:
            return found
        agreement = process.agreement
        jobs = process.in_hand()
        running = [job for job in jobs if job.stage is RUNNING]
        now = monotonic()
        return found | {
            "status": "stopping" if process.is_stopping else "working",
            "consumer": process.consumer,
            "concurrency": settings.concurrency,
            "running": len(running),
            "queued": len(jobs) - len(running),
            "longest_running_ms": max((round((now - job.started) * 1000) for job in running), default=None),
            "recovery": agreement.recovery,
            "redelivery": agreement.redelivery,
            "visibility_ms": to_ms(agreement.visibility_timeout),
            "max_deliveries": agreement.max_deliveries,
            "counts": asdict(process.counts),
        }


@asynccontextmanager
async def serving_health(worker: Worker) -> AsyncIterator[int | None]:
    """Serve the worker's health while the block runs, if `health_port` is set. Yields the port."""
    settings = worker.settings
    if settings.health_port is None:
        yield None
        return

    @asynccontextmanager
    async def app(pulse: Pulse) -> "AsyncIterator[Starlette]":
        client = commands_client(
            settings.redis_url, key=settings.keys.stream, timeout_s=READY_TIMEOUT_S, max_connections=2
        )
        try:
            yield make_app(probe_routes(WorkerVitals(worker, pulse, client)), settings.health_host)
        finally:
            await client.aclose()

    async with health_server(settings.health_host, settings.health_port, app) as port:
        yield port
