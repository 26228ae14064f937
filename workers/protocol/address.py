"""What may stand in the address of a Redis, and how it is shown. Pure.

redis-py takes any word of an address for an argument of its own, and lets it win over ours: what decodes replies,
speaks another protocol or sends twice kills a worker, or a job. So only what is known to work is let through.
"""

import re
from urllib.parse import parse_qsl, urlsplit

_ALL = frozenset({"db", "username", "password", "client_name"})
_TCP = _ALL | {"socket_keepalive"}
_TLS = _TCP | {
    "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_ciphers",
    "ssl_keyfile", "ssl_min_version", "ssl_password",
}  # fmt: skip
OPTIONS = {"unix": _ALL, "redis": _TCP, "rediss": _TLS}
"""Options of an address, by its scheme."""


def hide_password(url: str) -> str:
    """Return ``url`` fit for logs. A password may hold ``@`` and ``/``, or stand in the query."""
    return re.sub(r"([?&](?:ssl_)?password=)[^&#]*", r"\1***", re.sub(r"(://[^/@:]*:).*@", r"\1***@", url))


def objection_to(url: str) -> str:
    """Say which of an address's words cannot work, and why; nothing where they all can. Raises ValueError."""
    parts = urlsplit(url)
    allowed = OPTIONS.get(parts.scheme)
    if allowed is None:
        return ""  # redis-py says so
    given = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    wrong = sorted({name for name in given if name not in allowed})
    if wrong and "@" in url.partition("?")[2]:  # nothing of a password is quoted
        return "what follows the '?' are no options; special characters in a password must be percent-encoded"
    if wrong:
        names = ", ".join(map(repr, wrong))
        word, verb = ("option", "is") if len(wrong) == 1 else ("options", "are")
        return (
            f"{word} {names} {verb} not for an address of {parts.scheme}://, which takes {', '.join(sorted(allowed))}"
        )
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        return f"option {twice[0]!r} stands there more than once"
    if parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path):
        return "what follows the host is no number of a database"
    return ""
