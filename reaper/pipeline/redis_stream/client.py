"""Reads streams from one server, from the master that Sentinels name, or from a cluster. Waits through outages."""

import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import redis
from redis import exceptions
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from reaper.pipeline.redis_stream.errors import LOG, RedisStreamError, UnreachableError
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.positions import State
from workers.protocol.address import Topology, parse_address, shown_address
from workers.protocol.log_fields import fields

TIMEOUT_S = 10.0
"""Without a reply for this long, the connection counts as lost."""
SENTINEL_TIMEOUT_S = 1.0
LONGEST_PAUSE_S, FIRST_PAUSE_S = 2.0, 0.05

_FINAL = (ssl.SSLCertVerificationError, exceptions.AuthenticationError, exceptions.AuthorizationError)
_FAILURES = (redis.RedisError, exceptions.RedisClusterException, OSError)
_PASSING = (
    redis.ConnectionError, redis.TimeoutError, OSError, exceptions.AskError, exceptions.MovedError,
    exceptions.TryAgainError, exceptions.ClusterDownError, exceptions.MasterDownError,
)  # fmt: skip
"""Errors after which another attempt may succeed."""

Entry = tuple[bytes, dict[bytes, bytes]]
"""An entry's ID and fields."""
T = TypeVar("T")


class Client:
    """A client of redis-py, opened when it is needed and opened again after an outage. It only reads."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._shown = shown_address(options.url)
        self._open: Any = None

    def call(self, ask: Callable[[Any], T]) -> T:
        """Return ``ask(client)``. Tries again for ``retrySeconds`` while Redis is out of reach or not ready.

        Raises UnreachableError, and RedisStreamError where Redis rejects the call.
        """
        lost_at: float | None = None

        def failed(error: Exception) -> None:
            nonlocal lost_at
            self.close()
            if not _may_pass(error):
                raise RedisStreamError(f"Redis at {self._shown} rejected a call: {error}.") from None
            now = time.monotonic()
            if lost_at is None:
                lost_at = now
                facts = fields(address=self._shown, retry_s=self.options.retry_s, cause=error)
                LOG.warning("cannot reach Redis, retrying: %s", facts)
            if now - lost_at >= self.options.retry_s:
                waited = f"no contact with Redis at {self._shown} for {self.options.retry_s:g} s"
                raise UnreachableError(f"{waited}: {error}.") from error

        patience = Retry(ExponentialBackoff(LONGEST_PAUSE_S, FIRST_PAUSE_S), -1, _FAILURES)
        return patience.call_with_retry(lambda: ask(self._connected()), failed)

    def find_streams(self) -> set[str]:
        """Return the names of the streams that match the patterns now."""

        def scan(client: Any) -> set[str]:
            found = (client.scan_iter(key_of(glob), 1000, _type="stream") for glob in self.options.patterns)
            return {key.decode("utf-8", "surrogateescape") for keys in found for key in keys}

        return self.call(scan)

    def states(self, streams: Iterable[str]) -> dict[str, State | None]:
        """Return the states of streams, read in one round trip, with None for a missing stream."""
        names = sorted(streams)

        def look(client: Any) -> dict[str, State | None]:
            with client.pipeline(transaction=False) as pipeline:
                for stream in names:
                    pipeline.xinfo_stream(key_of(stream))
                replies = pipeline.execute(raise_on_error=False) if names else []
            return {stream: _state(reply) for stream, reply in zip(names, replies, strict=True)}

        return self.call(look)

    def page(self, stream: str, lowest: str, highest: str, count: int) -> list[Entry]:
        """Return up to ``count`` entries between two IDs, as XRANGE takes them."""
        return self.call(lambda client: client.xrange(key_of(stream), lowest, highest, count))

    def page_and_state(self, stream: str, lowest: str, highest: str, count: int) -> tuple[list[Entry], State | None]:
        """Return the same, and the state of the stream at that instant."""

        def look(client: Any) -> tuple[list[Entry], State | None]:
            key = key_of(stream)
            at = client.get_node_from_key(key).redis_connection if isinstance(client, RedisCluster) else client
            with at.pipeline(transaction=True) as pipeline:  # that of a cluster would not parse the replies
                pipeline.xrange(key, lowest, highest, count)
                pipeline.xinfo_stream(key)
                page, reply = pipeline.execute(raise_on_error=False)
            state = _state(reply)
            if isinstance(page, Exception):
                raise page
            return page, state

        return self.call(look)

    def close(self) -> None:
        """Close the connections."""
        client, self._open = self._open, None
        if client is not None:
            with suppress(Exception):
                client.close()

    def _connected(self) -> Any:
        if self._open is None:
            self._open = _connect(self.options.url)
        return self._open


def _connect(url: str) -> Any:
    """Open a client. Raises redis.RedisError, OSError."""
    address = parse_address(url)
    given = parse_url(address.node)
    login = {name: value for name, value in given.items() if name not in ("host", "port", "connection_class")}
    ours: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
    }
    tls: dict[str, Any] = {"ssl": True} if address.tls else {}
    if address.topology is Topology.CLUSTER:
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        login.pop("db", None)
        return RedisCluster(startup_nodes=nodes, **{**login, **ours, **tls})
    if address.topology is Topology.SENTINEL:
        for_all = {name: value for name, value in login.items() if name not in ("db", "username", "password")}
        asking = {**for_all, **ours, **tls, **address.sentinel_login, "socket_timeout": SENTINEL_TIMEOUT_S}
        sentinels = Sentinel(address.hosts, sentinel_kwargs=asking, **{**login, **ours, **tls})
        return sentinels.master_for(address.master)
    return redis.Redis.from_url(address.node, **ours)


def _may_pass(error: Exception) -> bool:
    """Tell whether another attempt may succeed."""
    if isinstance(error, exceptions.RedisClusterException):
        return "is not enabled" not in str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _FINAL):
            return False
        cause = cause.__cause__ or cause.__context__
    return isinstance(error, _PASSING) or str(error).startswith("BUSY ")


def _state(reply: Mapping[str, Any] | Exception) -> State | None:
    if isinstance(reply, Exception):
        if "no such key" in str(reply):
            return None
        raise reply
    return State.of(reply)


def key_of(stream: str) -> bytes:
    """Return the key of a stream. A name may hold bytes that are no UTF-8, as surrogates."""
    return stream.encode("utf-8", "surrogateescape")


def printable(stream: str) -> str:
    r"""Return the name of a stream as text. Bytes that are not UTF-8 become ``\xNN``."""
    return text_of(key_of(stream))


def text_of(word: bytes) -> str:
    r"""Return a word as text. Bytes that are not UTF-8 become ``\xNN``."""
    return word.decode("utf-8", "backslashreplace")
