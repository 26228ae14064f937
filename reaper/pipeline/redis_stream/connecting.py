"""Makes a connection to the server that an address means, which others may have to name, and checks who answers."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from reaper.pipeline.redis_stream.errors import RedisStreamError
from reaper.pipeline.redis_stream.tls import tls_refusal
from workers.protocol.address import Address, AddressError, Host, Topology, parse_address, shown_address
from workers.protocol.nodes import HELLO, may_pass, objection_to_node
from workers.protocol.slots import SlotTable, parse_slots

TIMEOUT_S = 10.0
"""Without a reply for this long, there is no contact."""
SENTINEL_S = 1.0
"""The same at a Sentinel: then the next one is asked."""
LOOK_S = 1.0
"""How often it is asked whether a connection that is used still leads to the master."""


def connect(url: str, node: Host | None = None) -> Any:
    """Return a connection to the server that takes writes; in a cluster, to this node of it.

    Raises RedisStreamError, or what redis-py raises.
    """
    address = address_of(url)
    with _telling_at_once(address, url):
        connection = _open(address, url, node)
        try:
            _check_node(connection, address, url)
        except Exception:
            connection.disconnect()
            raise
    return connection


def ask_slots(url: str, node: Host) -> SlotTable:
    """Return who has which slot of a cluster, as one of its nodes says. Raises as `connect`."""
    address = address_of(url)
    with _telling_at_once(address, url):
        connection = _open(address, url, node, SENTINEL_S)
        try:
            connection.send_command("CLUSTER", "SLOTS")
            reply = reply_of(connection)
        finally:
            connection.disconnect()
    if is_not_ready(reply):
        raise not_ready(reply)
    if isinstance(reply, Exception):
        raise RedisStreamError(f"{shown_address(url)} does not say who has which slot: {reply}.")
    return parse_slots(reply, node)


def not_ready(reply: Any) -> Exception:
    """Return what to raise for a reply of which `is_not_ready` is true: another attempt will do."""
    import redis

    return redis.ConnectionError(str(reply))


@contextmanager
def _telling_at_once(address: Address, url: str) -> Iterator[None]:
    """Raise RedisStreamError where no other attempt will do: certificates, files of theirs, and what is no TLS."""
    import redis

    try:
        yield
    except redis.InvalidResponse:
        raise RedisStreamError(
            f"what answers at {shown_address(url)} does not speak as Redis does. (Where it asks for TLS, write rediss://.)"
        ) from None
    except (redis.RedisError, OSError) as error:
        reason = tls_refusal(error) if address.tls else None
        if reason:
            raise RedisStreamError(f"no TLS with {shown_address(url)}: {reason}.") from None
        raise


def hearing_alerts(kind: type[Any]) -> type[Any]:
    """Return ``kind`` of connection, by TLS, whose failed write says why the server has ended it, if it told.

    By TLS 1.3 a server looks at a client's certificate when that takes the connection for made, and tells whoever
    reads that it is refused. Who writes a little later meets the end alone.
    """
    import redis

    def disconnect(self: Any, *args: Any, **more: Any) -> None:
        if self._sock is not None and isinstance(sys.exc_info()[1], OSError):
            self._sock.settimeout(0)
            try:
                self._sock.recv(1)
            except OSError as word:
                self._alert = word if tls_refusal(word) else None
        kind.disconnect(self, *args, **more)

    def send_packed_command(self: Any, command: Any, check_health: bool = True) -> None:
        self._alert = None
        try:
            kind.send_packed_command(self, command, check_health)
        except redis.ConnectionError as error:
            if self._alert is not None:
                raise error from self._alert
            raise

    return type(kind.__name__, (kind,), {"disconnect": disconnect, "send_packed_command": send_packed_command})


def _open(address: Address, url: str, node: Host | None, timeout_s: float = TIMEOUT_S) -> Any:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    try:
        pool = redis.ConnectionPool.from_url(address.node)
    except (ValueError, TypeError, redis.RedisError):  # its text may hold a part of the password
        raise RedisStreamError(_BAD_OPTION) from None
    if address.tls:
        pool.connection_class = hearing_alerts(pool.connection_class)
    # Set afterwards: what stands in a URL would win over what is given along with it.
    pool.connection_kwargs |= {
        "protocol": 2,
        "decode_responses": False,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "health_check_interval": 0,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "retry_on_timeout": False,
    }
    if address.topology is Topology.SENTINEL:
        pool.connection_kwargs |= _master_of(address)
    if node is not None:
        pool.connection_kwargs |= {"host": node[0], "port": node[1]}
    try:
        connection = pool.make_connection()
    except (TypeError, ValueError, redis.RedisError):
        raise RedisStreamError(_BAD_OPTION) from None
    try:
        connection.connect()
    except (redis.AuthenticationError, redis.ResponseError) as error:
        if is_not_ready(error):
            raise not_ready(error) from None
        raise RedisStreamError(f"Redis at {shown_address(url)} does not let us in: {error}") from None
    return connection


_BAD_OPTION = "the URL of Redis has an option with a value that cannot work: correct what follows its '?'."


def address_of(url: str) -> Address:
    """Return what a URL means. Raises RedisStreamError."""
    try:
        return parse_address(url)
    except AddressError as error:
        raise RedisStreamError(f"the URL of Redis cannot be used: {error}") from None


def _master_of(address: Address) -> dict[str, Any]:
    """Ask the Sentinels where the master is now. Raises redis.ConnectionError where they name none."""
    import redis.sentinel
    from redis.backoff import NoBackoff
    from redis.connection import parse_url
    from redis.retry import Retry

    about_nodes = ("host", "port", "db", "username", "password", "connection_class")
    options = {name: value for name, value in parse_url(address.node).items() if name not in about_nodes}
    options |= {"protocol": 2, "socket_timeout": SENTINEL_S, "retry": Retry(NoBackoff(), 0), **address.sentinel_login}
    if address.tls:
        options["ssl"] = True
    asked = redis.sentinel.Sentinel(address.hosts, sentinel_kwargs=options)
    for sentinel in asked.sentinels if address.tls else ():
        sentinel.connection_pool.connection_class = hearing_alerts(sentinel.connection_pool.connection_class)
    try:
        host, port = asked.discover_master(address.master)
    except redis.sentinel.MasterNotFoundError:  # its text is a page long, and says nothing of TLS
        refusal = next(filter(None, map(_refusal_of, asked.sentinels)), None) if address.tls else None
        if refusal:
            raise RedisStreamError(f"no TLS with the Sentinels at {address.shown_hosts}: {refusal}.") from None
        raise redis.ConnectionError(
            f"the Sentinels at {address.shown_hosts} name no master {address.master!r} that is up"
        ) from None
    except redis.ResponseError as error:
        raise RedisStreamError(f"the Sentinels at {address.shown_hosts} do not let us ask: {error}.") from None
    finally:
        for sentinel in asked.sentinels:
            sentinel.close()
    return {"host": host, "port": port}


def _refusal_of(sentinel: Any) -> str | None:
    """Return what is wrong with TLS at a Sentinel."""
    import redis

    try:
        sentinel.ping()
    except (redis.RedisError, OSError) as error:
        return tls_refusal(error)
    return None


def _check_node(connection: Any, address: Address, url: str) -> None:
    """Ask who answers. Raises RedisStreamError, or redis.ConnectionError where that may be over soon."""
    import redis

    connection.send_command(HELLO)
    reply = reply_of(connection)
    objection = "" if isinstance(reply, Exception) else objection_to_node(reply, address.topology)
    if objection and may_pass(objection):
        raise redis.ConnectionError(objection)
    if objection:
        raise RedisStreamError(f"{shown_address(url)} cannot be read: {objection}.")


def reply_of(connection: Any) -> Any:
    """Return the next reply as it comes, an error of Redis as a value."""
    import redis

    try:
        return connection.read_response(disable_decoding=True)
    except (redis.ResponseError, redis.AuthenticationError) as error:
        return error


def is_not_ready(reply: Any) -> bool:
    """Tell whether Redis says that another time, or another node, will do."""
    from redis.exceptions import AskError, ClusterDownError, MasterDownError, MovedError, ReadOnlyError, TryAgainError

    classes = (AskError, ClusterDownError, MasterDownError, MovedError, ReadOnlyError, TryAgainError)
    return isinstance(reply, classes) or (isinstance(reply, Exception) and str(reply).startswith(("LOADING ", "BUSY ")))


class Looking:
    """Tells whether a connection still leads to the master, where Sentinels know it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._looked = time.monotonic()

    def leads_elsewhere(self, connection: Any) -> bool:
        """Ask the Sentinels, now and then. What they do not know changes nothing."""
        import redis

        now = time.monotonic()
        if now - self._looked < LOOK_S or "+sentinel" not in self._url.partition("://")[0]:
            return False
        self._looked = now
        with suppress(redis.RedisError, OSError):
            return bool(_master_of(parse_address(self._url)) != {"host": connection.host, "port": connection.port})
        return False
