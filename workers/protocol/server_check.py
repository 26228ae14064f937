"""Checks which server answers, and says what to do if none does."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from workers.protocol.address import shown_address
from workers.protocol.errors import UnreachableError, UnsupportedServerError
from workers.protocol.meaning import Meaning, WrongNodeError, in_words, is_not_now, meaning_of
from workers.protocol.server import Release, release_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

_ADDRESS = "Start one there, or set redis_url (REAPER_REDIS_URL) to the right address."
_AUTHORITY = "(REAPER_REDIS_CA_FILE)"
_OF_TLS = (
    ("certificate has expired", "Renew its certificate."),
    ("certificate is not valid for", "Write the name that its certificate is for in redis_url."),
    ("CERTIFICATE_VERIFY_FAILED", f"Name who has signed its certificate in redis_ca_file {_AUTHORITY}."),
    ("a certificate or key cannot be read", "Correct redis_ca_file, redis_cert_file or redis_key_file."),
    ("CERTIFICATE_REQUIRED", "It asks for a certificate of ours: set redis_cert_file and redis_key_file."),
)
"""What is said of a handshake that failed, and what to do about it."""
_OF_LIMITS = (
    ("DB index", "It has fewer databases: end redis_url with a lower number, or with none."),
    ("unknown command", "It is to know that by its own name: see its rename-command, or the proxy in front of it."),
)
"""What a server says that is there, and lets us in, and what to do about it."""
_CUT_SHORT = ("Connection reset", "Connection closed", "Timeout connecting")
"""What is said where one of the two speaks TLS and the other does not, or where a certificate of ours is missing."""


def _advice(error: RedisError, url: str) -> str:
    """Return what to do about a server that was asked in vain."""
    said = str(error)
    if isinstance(error, WrongNodeError):
        return ""  # it says so itself
    if is_not_now(error):
        return "The server is not ready. Try again later."
    for words, advice in (*_OF_TLS, *_OF_LIMITS):
        if words in said:
            return advice
    found = meaning_of(error)
    if found is Meaning.LOCKED_OUT:
        return "Login rejected: correct the user name and the password in redis_url."
    if found is Meaning.DENIED:
        return "The user lacks permissions: apply the rules that `reaper acl` prints."
    if not any(words in said for words in _CUT_SHORT):
        return _ADDRESS
    if url.startswith("rediss"):
        return f"{_ADDRESS} It may speak no TLS there (redis:// …), or want redis_cert_file and redis_key_file."
    return f"{_ADDRESS} It may speak TLS there (rediss:// …)."


async def check_server(client: "Redis", url: str) -> Release:
    """Return what the server is. Raises UnreachableError or UnsupportedServerError, naming ``redis_url``."""
    try:
        info: Mapping[str, Any] = await client.info("server")
    except RedisError as error:
        said = f"{in_words(error).rstrip('.?!')}. {_advice(error, url)}".rstrip()
        raise UnreachableError(f"cannot use Redis at {shown_address(url)!r}: {said}") from error
    except OSError as error:
        raise UnreachableError(f"cannot connect to Redis at {shown_address(url)!r}: {error}. {_ADDRESS}") from error
    release = release_of(info)
    if release.objection:
        raise UnsupportedServerError(f"{release} at {shown_address(url)!r} {release.objection}. Upgrade the server.")
    return release
