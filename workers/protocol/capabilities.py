"""The abilities of a server beyond Redis 6.2.

The server itself is asked, because its version is no sure sign (Valkey, providers).

Each question is a call without effect. It is a command without its arguments, or a call that is rejected on a missing
key and on an existing one.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from workers.protocol.meaning import Meaning, is_not_known, meaning_of

if TYPE_CHECKING:
    from redis.asyncio import Redis


class Capability(StrEnum):
    """Abilities that some servers have, and others lack."""

    CLAIM = "CLAIM"
    """``XREADGROUP … CLAIM``: a reader takes what is overdue before what is new (Redis 8.4)."""
    XNACK = "XNACK"
    """A delivery is given back where it is (Redis 8.8)."""


Capabilities = Mapping[Capability, bool | None]
"""None = unknown: our user may not ask."""


async def capabilities_quietly(client: "Redis") -> Capabilities:
    """Ask for each ability that needs no right, so that the server rejects and logs no call. That is all but CLAIM.

    Of a command alone, the number of its arguments is checked before the user's rights are. Raises what redis-py
    raises.
    """
    return {Capability.XNACK: await _knows(client, "XNACK")}


async def capabilities_of(client: "Redis", absent: str) -> Capabilities:
    """Ask for each. ``absent`` is a missing key that our user may touch. Raises what redis-py raises."""
    return {Capability.CLAIM: await knows_claim(client, absent), **await capabilities_quietly(client)}


async def knows_claim(client: "Redis", absent: str) -> bool | None:
    """Ask for CLAIM alone. ``absent`` as in `capabilities_of`, or no stream. Raises what redis-py raises."""
    return await _knows(client, "XREADGROUP", "GROUP", _NOBODY, _NOBODY, "CLAIM", "1000", "STREAMS", absent, ">")


UNSEEN = "XNACK: verified on a simulator only"
"""No server with XNACK was at hand: what is said of it until one was."""
_NOBODY = "stream-reaper:nobody"
_CANNOT_TELL = (Meaning.DENIED, Meaning.AWAY, Meaning.LOCKED_OUT)


async def _knows(client: "Redis", *words: str) -> bool | None:
    """Tell whether the server knows these words, by how it refuses the call."""
    try:
        await client.execute_command(*words)
    except ResponseError as error:
        return None if meaning_of(error) in _CANNOT_TELL else not is_not_known(error)
    return True


def in_words(capabilities: Capabilities) -> str:
    """Return the optional features of a server for people, like ``CLAIM, XNACK unknown``. Empty if it has none."""
    known = [name if can else f"{name} unknown" for name, can in capabilities.items() if can or can is None]
    return ", ".join(known) + (f" ({UNSEEN})" if capabilities.get(Capability.XNACK) else "")
