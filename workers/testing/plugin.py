"""Fixtures for pytest, asked for in the ``conftest.py`` at the top of the tests.

::

    pytest_plugins = ["workers.testing.plugin"]

It is asked for by name, and no entry point that pytest finds by itself: that would be loaded into every test run of
every project that has this package installed, and nobody would see where the fixtures come from.
"""

from collections.abc import Iterator
from functools import partial

import pytest

from workers.testing import DrainWorker, DrainWorkerAsync, RedisServer, run_until_drained_async
from workers.testing import run_until_drained as drain


@pytest.fixture(scope="session")
def redis_server_process() -> Iterator[RedisServer]:
    """The server of this test run: started when it is first asked for, and ended with the run."""
    with RedisServer.started() as server:
        yield server


@pytest.fixture
def redis_server(redis_server_process: RedisServer) -> RedisServer:
    """A Redis of the tests' own, empty at the start of each test; ``redis_server.url`` is its address."""
    redis_server_process.flush()
    return redis_server_process


@pytest.fixture
def run_until_drained(redis_server: RedisServer) -> DrainWorker:
    """Enqueue jobs and run a worker until nothing is left; `workers.testing.run_until_drained` on ``redis_server``."""
    return partial(drain, redis_url=redis_server.url)


@pytest.fixture(name="run_until_drained_async")
def _run_until_drained_async(redis_server: RedisServer) -> DrainWorkerAsync:
    """Do as `run_until_drained`, for tests that are ``async def``: ``await run_until_drained_async(worker, jobs)``."""
    return partial(run_until_drained_async, redis_url=redis_server.url)
