"""The health of a worker process, over HTTP (`workers.runtime.health_server`)."""

from contextlib import AbstractAsyncContextManager
from functools import partial

from workers.runtime.health_server import health_server
from workers.worker import Worker


def serving_health(worker: Worker) -> AbstractAsyncContextManager[int | None]:
    """Serve the worker's health while the block runs, if `health_port` is set. Yields the port."""
    settings = worker.settings
    return health_server(
        settings.health_host,
        settings.health_port,
        settings.redis_url,
        settings.keys.stream,
        partial(_obstacles, worker),
    )


def _obstacles(worker: Worker) -> list[str]:
    """Return why the worker is not ready: it must have read from its group, and must not be stopping."""
    process = worker.process
    if process is not None and process.is_stopping:
        return ["the worker is stopping"]
    if process is not None and process.refusals:
        return [f"Redis rejects a call: {why}" for why in process.refusals]
    if process is None or not process.has_joined:
        return ["the group is not joined yet"]
    return [] if process.has_worked else ["the worker has not read from its group yet"]
