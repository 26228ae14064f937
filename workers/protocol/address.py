"""The address of a Redis: what may stand in it, what it means, and how it is shown. Pure.

::

    redis://[[user]:password@]host[:port][/db]            rediss://…          unix://path
    redis+sentinel://[[user]:password@]h1[:26379],h2,h3/mymaster[/db]         rediss+sentinel://…
    redis+cluster://[[user]:password@]h1[:6379],h2                            rediss+cluster://…

Each takes options (``?name=value&…``). redis-py takes any word of an address for an argument of its own, and lets it
win over ours: what decodes replies, speaks another protocol or sends twice kills a worker, or a job. So only what is
known to work is let through.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

Host = tuple[str, int]

FORMS = (
    "Write it as redis://[[user]:password@]host:port/db, rediss://…, unix://path, "
    "redis+sentinel://host:port,host:port/master/db or redis+cluster://host:port,host:port."
)

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

_PORT, _SENTINEL_PORT = 6379, 26379
_DATABASE = re.compile(r"/?\d*")
_SEVERAL_HOSTS = re.compile(r"(?P<host>\[[^\]]+\]|[^:\[\]]+)(:(?P<port>\d{1,5}))?")


class Topology(Enum):
    """Who may answer at an address."""

    SINGLE = "single"
    """One server, which takes writes."""
    SENTINEL = "sentinel"
    """Sentinels, which know the server that takes writes now."""
    CLUSTER = "cluster"
    """Nodes that share the keys among them."""


class AddressError(ValueError):
    """An address that cannot work. The message is a part of a sentence, and quotes nothing of a password."""


@dataclass(frozen=True)
class Address:
    """An address that was understood."""

    topology: Topology
    node: str = field(repr=False)
    """How one server is spoken to, as redis-py reads it. Where others name the server, its host is a placeholder."""
    tls: bool = False
    hosts: tuple[Host, ...] = ()
    """The Sentinels, or nodes of the cluster; empty for a single server, which `node` names."""
    master: str = ""
    """The name that the Sentinels know the master by."""
    sentinel_login: Mapping[str, str] = field(default_factory=dict, repr=False)
    """``username`` and ``password`` for the Sentinels themselves, as far as they are given."""

    @property
    def shown_hosts(self) -> str:
        """`hosts`, as people are shown them."""
        return ", ".join(f"{host}:{port}" for host, port in self.hosts)


def parse_address(url: str) -> Address:
    """Return what ``url`` means. Raises AddressError."""
    try:
        parts = urlsplit(url)
    except ValueError:  # it may quote a part of the password
        raise AddressError("brackets are for IPv6 addresses; in a password they must be percent-encoded") from None
    if parts.scheme not in OPTIONS:
        raise AddressError(f"its scheme is none of {', '.join(f'{scheme}://' for scheme in OPTIONS)}")
    objection = _objection_to_options(url, parts.scheme, parts.query)
    if objection:
        raise AddressError(objection)
    scheme, _, kind = parts.scheme.partition("+")
    if not kind:
        if scheme != "unix" and not _DATABASE.fullmatch(parts.path):
            raise AddressError("what follows the host is no number of a database")
        return Address(Topology.SINGLE, url, scheme == "rediss")
    login, at, hosts = parts.netloc.rpartition("@")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    for_sentinels = {name.removeprefix("sentinel_"): query.pop(name) for name in sorted(_SENTINELS & query.keys())}
    master, database = _master_of(parts.path) if kind == "sentinel" else ("", parts.path.strip("/"))
    if not _DATABASE.fullmatch(database):
        raise AddressError("what follows the hosts is no number of a database")
    if kind == "cluster" and database not in ("", "0"):
        raise AddressError("a cluster has no other database than 0")
    options = f"?{urlencode(query)}" if query else ""
    return Address(
        Topology(kind),
        f"{scheme}://{login}{at}placeholder/{database}{options}",
        scheme == "rediss",
        _hosts_of(hosts, _SENTINEL_PORT if kind == "sentinel" else _PORT),
        master,
        for_sentinels,
    )


def with_options(url: str, options: Mapping[str, str]) -> str:
    """Return ``url`` with further options at its end."""
    if not options:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options, quote_via=quote)}"


def hide_password(url: str) -> str:
    """Return ``url`` fit for logs. A password may hold ``@`` and ``/``, or stand in the query."""
    return re.sub(r"([?&](?:ssl_|sentinel_)?password=)[^&#]*", r"\1***", re.sub(r"(://[^/@:]*:).*@", r"\1***@", url))


def _objection_to_options(url: str, scheme: str, query: str) -> str:
    """Say which of an address's options cannot work, and why; nothing where they all can."""
    allowed = OPTIONS[scheme]
    given = [name for name, _ in parse_qsl(query, keep_blank_values=True)]
    wrong = sorted({name for name in given if name not in allowed})
    if wrong and "@" in url.partition("?")[2]:  # nothing of a password is quoted
        return "what follows the '?' are no options; special characters in a password must be percent-encoded"
    if wrong:
        names = ", ".join(map(repr, wrong))
        word, verb = ("option", "is") if len(wrong) == 1 else ("options", "are")
        return f"{word} {names} {verb} not for an address of {scheme}://, which takes {', '.join(sorted(allowed))}"
    twice = sorted({name for name in given if given.count(name) > 1})
    return f"option {twice[0]!r} stands there more than once" if twice else ""


def _master_of(path: str) -> tuple[str, str]:
    """Return the name of the master, and the database, from what follows the Sentinels."""
    name, _, database = path.removeprefix("/").partition("/")
    if not name or "@" in name:  # with '@', it is the end of a password
        raise AddressError("after the Sentinels' hosts comes /, and the name that they know the master by")
    return unquote(name), database


def _hosts_of(listed: str, port: int) -> tuple[Host, ...]:
    """Read ``h1:port,h2,[::1]:port``."""
    found = [_SEVERAL_HOSTS.fullmatch(host) for host in listed.split(",")]
    hosts = [(match["host"].strip("[]"), int(match["port"] or port)) for match in found if match]
    if len(hosts) < len(found) or any(not 0 < number < 65_536 for _, number in hosts):
        raise AddressError("its hosts are not host:port, separated by commas")
    return tuple(hosts)
