"""Fixtures for every tier. Servers are real. A test that needs one never skips.

The session starts each server once. A test that uses `server` finds it empty. Which servers it runs on, once on each,
is said in `tests.support.tiers`.
"""

import gc
import os
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Protocol, cast

import hypothesis
import pytest
from redis.asyncio import Redis

from tests.support.distribution import GroupScheduling, begins_early
from tests.support.nursery import Nursery
from tests.support.patience import SLOWNESS, slowness
from tests.support.processes import ROOT, Processes
from tests.support.proxy import Proxy, started_proxy
from tests.support.servers import RedisServer, lane_of, started_server
from tests.support.tiers import DEPLOY, LANE, OPTION, RECORD, asked_for, has_server, servers_for, split
from tests.support.watchdog import watched
from workers.protocol.connection import commands_client

# The same examples in every run, however busy the machine is.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the tiers."""
    parser.addoption(OPTION, action="store_true", help="run everything on every server at hand: make test-matrix")
    parser.addoption(
        DEPLOY, action="store_true", help="run what deploy/ ships, in containers and under systemd: make test-deploy"
    )
    parser.addoption(RECORD, action="store_true", help="with --deploy: write the record")
    parser.addoption(
        LANE,
        action="append",
        default=[],
        metavar="NAME",
        help="run what needs a server on this one only: 7.0.15, or valkey-9.1.2; several times for several",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have Ctrl-C heard (a shell's background job ignores it, and so would its programs), and measure the machine."""
    try:
        asked_for(config)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Measured once, and before other processes of the run make it busy.
    os.environ.setdefault(SLOWNESS, str(slowness()))


def pytest_report_header() -> str:
    """Print the factor of all time limits."""
    return f"patience: limits are {slowness():g} times as long as on the machine they were made for"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among thousands of tests, because that takes half of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Run each test under the watchdog."""
    with watched():
        return (yield)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Say which servers a test runs on."""
    if "binary" in metafunc.fixturenames:
        binaries = servers_for(metafunc.definition)
        metafunc.parametrize("binary", binaries, ids=lane_of, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for the matrix, or for servers that are not at hand, and let the longest tests begin."""
    collected = list(items)
    items[:], left_out = split(config, [item for item in items if has_server(item)])
    left_out += [item for item in collected if not has_server(item)]
    config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: begins_early(item.path), reverse=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """Say which tests stay together in one process of ``make test``."""
    return GroupScheduling(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Make reports fit for another process, because jobs hold any bytes, and logs name jobs."""
    return cast("dict[str, Any] | None", _sendable((yield)))


def _sendable(data: object) -> object:
    if isinstance(data, str):
        return data.encode(errors="backslashreplace").decode()
    if isinstance(data, dict):
        return {_sendable(key): _sendable(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(_sendable(value) for value in data)
    return data


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """redis.asyncio runs on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="session")
def binary(request: pytest.FixtureRequest) -> Path:
    """The program of the test's server, as `tests.support.tiers` chose it."""
    path: Path = request.param
    return path


@pytest.fixture(scope="session")
def server(binary: Path) -> Iterator[RedisServer]:
    """A server that tests share. It is empty at the start of each test."""
    with started_server(binary) as running:
        yield running


@pytest.fixture(autouse=True)
def _as_new(request: pytest.FixtureRequest) -> None:
    """Empty the shared server and put its settings back before each test that uses it."""
    if "server" in request.fixturenames:
        running: RedisServer = request.getfixturevalue("server")
        running.reset()


@pytest.fixture
async def client(server: RedisServer, _as_new: None) -> AsyncIterator[Redis]:
    """A commands client on `server`."""
    redis = commands_client(server.url)
    yield redis
    await redis.aclose()


class StartServer(Protocol):
    """Type of the `start_server` fixture."""

    def __call__(self, **config: str) -> RedisServer:
        """Start a server for one test. See `tests.support.servers.started_server`."""


@pytest.fixture
def start_server(binary: Path) -> Iterator[StartServer]:
    """Start servers that the test may stop, kill, pause and restart. All end with the test."""
    with ExitStack() as servers:

        def start(**config: str) -> RedisServer:
            return servers.enter_context(started_server(binary, **config))

        yield start


class StartProxy(Protocol):
    """Type of the `proxy` fixture."""

    async def __call__(self, server: RedisServer) -> Proxy:
        """Start a proxy in front of ``server``. See `tests.support.proxy`."""


@pytest.fixture
async def proxy() -> AsyncIterator[StartProxy]:
    """Start proxies (``through = await proxy(server)``). All are closed when the test ends."""
    async with AsyncExitStack() as proxies:

        async def start(server: RedisServer) -> Proxy:
            return await proxies.enter_async_context(started_proxy(server))

        yield start


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The folder that our programs start from."""
    running = Nursery(ROOT)
    yield running
    running.close()


@pytest.fixture(autouse=True)
def _reads_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reads of workers in the test's own process block for less time, because the stop of a worker waits for
    them."""
    monkeypatch.setattr("workers.loop.reading.BLOCK_MS", 100)


@pytest.fixture
def processes(tmp_path: Path, nursery: Nursery) -> Iterator[Processes]:
    """Start worker, reaper and other processes. All end with the test."""
    started = Processes(tmp_path, nursery)
    yield started
    started.end()
