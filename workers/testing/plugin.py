"""Fixtures for pytest, requested in the ``conftest.py`` at the top of the tests.

::

    pytest_plugins = ["workers.testing.plugin"]

It is not an entry point of pytest, because that would load it into every test run of every project that has this
package installed.
"""

from collections.abc import Iterator
from functools import partial

import pytest

from workers.testing import DrainWorker, DrainWorkerAsync, RedisServer, run_until_drained_async
from workers.testing import run_until_drained as drain


@pytest.fixture(scope="session")
def redis_server_process() -> Iterator[RedisServer]:
    """The server of this test run. It starts at its first use, and ends with the run."""
    with RedisServer.started() as server:
        yield server


@pytest.fixture
def redis_server(redis_server_process: RedisServer) -> RedisServer:
    """A Redis of the tests' own, empty at the start of each test. Its address is ``redis_server.url``."""
    redis_server_process.flush()
    return redis_server_process


@pytest.fixture
def run_until_drained(redis_server: RedisServer) -> DrainWorker:
    """Enqueue jobs and run a worker until all are done, as `workers.testing.run_until_drained` on this server."""
    return partial(drain, redis_url=redis_server.url)


@pytest.fixture(name="run_until_drained_async")
def _run_until_drained_async(redis_server: RedisServer) -> DrainWorkerAsync:
    """Do the same in tests that are ``async def``, as in ``await run_until_drained_async(worker, jobs)``."""
    return partial(run_until_drained_async, redis_url=redis_server.url)
