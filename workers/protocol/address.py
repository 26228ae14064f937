"""The address of a Redis, with its syntax, its meaning, and its form in messages. Pure.

::

    redis://[[user]:password@]host[:port][/db]            rediss://…          unix:///path
    redis+sentinel://[[user]:password@]h1[:26379],h2,h3/mymaster[/db]         rediss+sentinel://…
    redis+cluster://[[user]:password@]h1[:6379],h2                            rediss+cluster://…

Each takes options (``?name=value&…``). redis-py lets them win over our arguments, so only those pass that cannot break
a worker or duplicate a job.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

Host = tuple[str, int]

FORMS = (
    "Write it as redis://[[user]:password@]host:port/db, rediss://…, unix:///path, "
    "redis+sentinel://host:port,host:port/master/db or redis+cluster://host:port,host:port, with %2F, %40, %23, %3F "
    "and %25 for '/', '@', '#', '?' and '%' in a password."
)
HIDDEN = "***"
SHARED_URL = "REDIS_URL"
"""The variable that many programs share. Ours read it if no setting names an address."""

_ALL = frozenset({"db", "username", "password", "client_name"})
_TCP = _ALL | {"socket_keepalive"}
_TLS = _TCP | {
    "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_ciphers",
    "ssl_keyfile", "ssl_min_version", "ssl_password",
}  # fmt: skip
_SENTINELS = frozenset({"sentinel_username", "sentinel_password"})
OPTIONS = {
    "unix": _ALL,
    "redis": _TCP,
    "rediss": _TLS,
    "redis+sentinel": _TCP | _SENTINELS,
    "rediss+sentinel": _TLS | _SENTINELS,
    "redis+cluster": _TCP,
    "rediss+cluster": _TLS,
}
"""Options of an address, by its scheme."""

_SECRET = frozenset({"username", "password", "ssl_password"}) | _SENTINELS
_PORT, _SENTINEL_PORT = 6379, 26379
_DATABASE = re.compile(r"\d*", re.ASCII)
_HOST = re.compile(r"(?P<host>\[[0-9A-Za-z:.%]+\]|[\w.-]+)(:(?P<port>[0-9]{1,5}))?")
_LOGIN = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)(?!:KEY@|\[\[user\])[^\s'\"<>]*@", re.IGNORECASE)


class Topology(Enum):
    """The kind of server at an address."""

    SINGLE = "single"
    """One server that accepts writes."""
    SENTINEL = "sentinel"
    """Sentinels that name the present master."""
    CLUSTER = "cluster"
    """Nodes of a cluster."""


class AddressError(ValueError):
    """An address that cannot work. The message is the end of a sentence, and quotes no part of a password."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}. {FORMS}")


@dataclass(frozen=True)
class Address:
    """A parsed address."""

    topology: Topology
    node: str = field(repr=False)
    """The address of one server, for redis-py. For Sentinels and clusters its host is a placeholder."""
    tls: bool = False
    hosts: tuple[Host, ...] = ()
    """The Sentinels, or nodes of the cluster. Empty for a single server, which `node` names."""
    master: str = ""
    """The master's name at the Sentinels."""
    sentinel_login: Mapping[str, str] = field(default_factory=dict, repr=False)
    """``username`` and ``password`` for the Sentinels themselves, if given."""


def parse_address(url: str) -> Address:
    """Return the meaning of ``url``, without white space around it. Raises AddressError."""
    url = url.strip()
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in OPTIONS:
        raise AddressError(f"the scheme must be one of {', '.join(f'{scheme}://' for scheme in OPTIONS)}")
    if not url.isprintable():
        raise AddressError("it contains a character that cannot be printed")
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may quote a part of the password
        raise AddressError("brackets are allowed around IPv6 addresses only; encode them in a password") from None
    protocol, _, kind = scheme.partition("+")
    login, at, hosts = parts.netloc.rpartition("@")
    found = _hosts_of(hosts, _SENTINEL_PORT if kind == "sentinel" else _PORT) if scheme != "unix" else ()
    if parts.fragment or ("@" in parts.path and scheme != "unix"):
        raise AddressError("an '@' or a '#' follows the host; encode them in a password")
    if scheme == "unix" and hosts:
        raise AddressError("the path of a socket must begin with '/'")
    if len(found) > 1 and not kind:
        raise AddressError("several hosts need redis+sentinel:// or redis+cluster://")
    query = _options_of(scheme, parts.query)
    master, database = _master_of(parts.path) if kind == "sentinel" else ("", parts.path.removeprefix("/"))
    if scheme != "unix" and not _DATABASE.fullmatch(database):
        raise AddressError("the part after the host must be the number of a database")
    if kind == "cluster" and database not in ("", "0"):
        raise AddressError("a cluster has only database 0")
    if not kind:
        return Address(Topology.SINGLE, url, scheme == "rediss")
    for_sentinels = {name.removeprefix("sentinel_"): query.pop(name) for name in sorted(_SENTINELS & query.keys())}
    node = f"{protocol}://{login}{at}placeholder/{database}" + (f"?{urlencode(query)}" if query else "")
    return Address(Topology(kind), node, protocol == "rediss", found, master, for_sentinels)


def with_options(url: str, options: Mapping[str, str]) -> str:
    """Return ``url`` with further options at its end."""
    if not options:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options, quote_via=quote)}"


def shown_address(url: str) -> str:
    """Return ``url`` for messages, without its login, or only its scheme if it cannot be parsed."""
    url = url.strip()
    scheme = url.partition("://")[0]
    try:
        parse_address(url)
    except AddressError:
        return f"{scheme}://{HIDDEN}" if scheme in OPTIONS else HIDDEN
    parts = urlsplit(url)
    _, at, hosts = parts.netloc.rpartition("@")
    pairs = (pair.partition("=") for pair in parts.query.split("&"))
    options = "&".join(
        f"{name}={HIDDEN}" if unquote(name) in _SECRET else name + equals + value for name, equals, value in pairs
    )
    return f"{scheme}://{HIDDEN + at if at else ''}{hosts}{parts.path}{'?' + options if options else ''}"


def holds_login(url: str) -> bool:
    """Return whether `shown_address` hides a part of ``url``."""
    return shown_address(url) != url


def may_be_address(text: str) -> bool:
    """Return whether ``text``, which was given as something else, may be an address with a password."""
    return "@" in text or "://" in text or "password" in text.lower()


def without_logins(text: str) -> str:
    """Return ``text``, for example another library's message, without the logins of addresses in it."""
    return _LOGIN.sub(rf"\g<scheme>{HIDDEN}@", text)


def _options_of(scheme: str, query: str) -> dict[str, str]:
    """Return an address's options. Raises AddressError if one cannot work."""
    allowed = OPTIONS[scheme]
    given = parse_qsl(query, keep_blank_values=True)
    names = [name for name, _ in given]
    if not allowed.issuperset(names):  # they are not quoted, because they may be a part of a password
        takes = ", ".join(sorted(allowed))
        raise AddressError(f"unknown option after the '?': {scheme}:// takes {takes}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise AddressError(f"option {twice[0]!r} occurs more than once")
    return dict(given)


def _master_of(path: str) -> tuple[str, str]:
    """Return the name of the master and the database, from the part behind the Sentinels."""
    name, _, database = path.removeprefix("/").partition("/")
    if not name:
        raise AddressError("the name of the master is missing after the hosts of the Sentinels")
    return unquote(name), database


def _hosts_of(listed: str, port: int) -> tuple[Host, ...]:
    """Read ``h1:port,h2,[::1]:port``."""
    found = [_HOST.fullmatch(host) for host in listed.split(",")]
    hosts = [(match["host"].strip("[]"), int(match["port"] or port)) for match in found if match]
    if len(hosts) < len(found) or any(not 0 < number < 65_536 for _, number in hosts):
        raise AddressError("the hosts must be host:port, separated by commas")
    return tuple(hosts)
