"""Checks the server that answers, and gives advice if none does.

A call without effect shows whether it knows CLAIM, because its version is no sure sign (Valkey, cloud providers).
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from workers.protocol.address import Topology, parse_address, shown_address
from workers.protocol.errors import UnreachableError, UnsupportedServerError
from workers.protocol.meaning import Meaning, in_words, is_not_known, is_not_now, meaning_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}
"""The oldest versions that recovery works with. Valkey began with 7.2."""


def release_of(info: Mapping[str, Any]) -> str:
    """Return product and version by ``INFO server``. Valkey calls itself Redis 7.2.4 there, and adds its own version.

    Raises UnsupportedServerError if it is neither, or too old.
    """
    for product, name in (("Valkey", "valkey_version"), ("Redis", "redis_version")):
        if version := str(info.get(name, "")):
            if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST[product]:
                oldest = ".".join(map(str, OLDEST[product]))
                raise UnsupportedServerError(
                    f"{product} {version} is too old: recovery needs {product} {oldest} or later. Upgrade the server."
                )
            return f"{product} {version}"
    raise UnsupportedServerError("the server is neither Redis nor Valkey. Set redis_url to the address of one.")


_ADDRESS = "Start Redis there, or set redis_url (REAPER_REDIS_URL) to the right address."
_AUTHORITY = "(REAPER_REDIS_CA_FILE)"
_TLS = f"{_ADDRESS} The server may need TLS (rediss://…), no TLS, or redis_cert_file and redis_key_file."
_ADVICE = {
    "certificate has expired": "Renew its certificate.",
    "certificate is not valid for": "Write the name that its certificate is for in redis_url.",
    "CERTIFICATE_VERIFY_FAILED": f"Name the authority that signed its certificate in redis_ca_file {_AUTHORITY}.",
    "a certificate or key cannot be read": "Correct redis_ca_file, redis_cert_file or redis_key_file.",
    "CERTIFICATE_REQUIRED": "The server needs a client certificate: set redis_cert_file and redis_key_file.",
    "DB index": "The server has fewer databases: end redis_url with a lower number, or with none.",
    **dict.fromkeys(("Connection reset", "Connection closed", "Timeout connecting"), _TLS),
}
"""Advice by words of the error."""
_MEANT = {
    Meaning.LOCKED_OUT: "Login rejected: correct the user name and the password in redis_url.",
    Meaning.DENIED: "The user lacks permissions: apply the rules that `reaper acl` prints.",
}


def _advice(error: RedisError | OSError) -> str:
    """Return advice on a failed call to a server."""
    if is_not_now(error):
        return "The server is not ready. Try again later."
    by_words = next((advice for words, advice in _ADVICE.items() if words in str(error)), _ADDRESS)
    return _MEANT.get(meaning_of(error), by_words)


async def check_server(client: "Redis", url: str) -> str:
    """Return product and version. Raises UnreachableError, which names ``redis_url``, or UnsupportedServerError."""
    try:
        info: Mapping[str, Any] = await client.info("server")
        role = (await client.info("replication")).get("role")
    except (RedisError, OSError) as error:
        said = f"{in_words(error).rstrip('.?!')}. {_advice(error)}"
        raise UnreachableError(f"cannot use Redis at {shown_address(url)!r}: {said}") from error
    release = release_of(info)
    topology, kind = parse_address(url).topology, info.get("redis_mode") or info.get("server_mode")  # Valkey
    if kind == "standalone" and role == "slave" and topology is Topology.SINGLE:
        kind = "replica"
    elif (kind == "cluster") is (topology is Topology.CLUSTER) and kind != "sentinel":
        return release
    if kind in _OTHER_KINDS:
        raise UnreachableError(f"cannot use Redis at {shown_address(url)!r}: {_OTHER_KINDS[kind]}.")
    return release


_OTHER_KINDS = {
    "replica": "a replica answers there. Name its master, or the Sentinels that watch it (redis+sentinel://…)",
    "sentinel": "a Sentinel answers there. Write redis+sentinel://host:port,host:port/master/db",
    "cluster": "a node of a cluster answers there. Write redis+cluster://host:port,host:port",
    "standalone": "no node of a cluster answers there. Write redis:// or rediss://",
}
"""The sentence about a server of another kind than the address means."""


async def knows_claim(client: "Redis", absent: str) -> bool | None:
    """Return whether the server knows ``XREADGROUP … CLAIM`` (Redis 8.4), or None if our user may not ask.

    ``absent`` is a missing key that our user may touch, or no stream. Raises redis-py's errors.
    """
    group = "stream-reaper:none"
    try:
        await client.execute_command("XREADGROUP", "GROUP", group, "none", "CLAIM", "1000", "STREAMS", absent, ">")
    except ResponseError as error:
        cannot_tell = (Meaning.DENIED, Meaning.AWAY, Meaning.LOCKED_OUT)
        return None if meaning_of(error) in cannot_tell else not is_not_known(error)
    return True
