"""Which client of redis-py a program may give to a producer. A client that cannot work is rejected before it sends."""

import asyncio
from typing import Any, TypeVar

import redis
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.client import Pipeline as BlockingPipeline

from workers.protocol.errors import ConfigurationError

ClientT = TypeVar("ClientT", Redis, redis.Redis)
_ADVICE = "Give the producer an address, with which it connects by itself."


def checked(client: ClientT) -> ClientT:
    """Return ``client``. Raises ConfigurationError if it would keep a job to itself, or has a single connection."""
    if isinstance(client, (Pipeline, BlockingPipeline)):
        raise ConfigurationError(
            f"a pipeline cannot be used, because it sends nothing before it is executed. {_ADVICE}"
        )
    if client.connection is not None or getattr(client, "single_connection_client", False):
        raise ConfigurationError(f"a client with a single connection can be in the middle of a transaction. {_ADVICE}")
    return client


def check_loop(client: Redis, loop: asyncio.AbstractEventLoop) -> None:
    """Raise ConfigurationError if ``client`` has connections that belong to another event loop.

    Such a connection still writes, and fails afterwards: redis-py raises RuntimeError for a job that is enqueued.
    """
    idle: list[Any] = getattr(client.connection_pool, "_available_connections", [])
    writers = (getattr(connection, "_writer", None) for connection in idle)
    if any(getattr(writer, "_loop", loop) is not loop for writer in writers if writer is not None):
        raise another_loop()


def another_loop() -> ConfigurationError:
    """Return the error for a client that was used in an event loop before, and now in another one."""
    return ConfigurationError(f"the producer's client was used in another event loop. {_ADVICE}")
