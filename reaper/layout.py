"""Whether a redelivery policy can work with a stream as it is."""

from redis.asyncio import Redis

from workers.protocol.keys import GroupKeys
from workers.protocol.messages import Redelivery, text
from workers.protocol.scripts import load_script
from workers.protocol.server import knows_claim

INSPECT_LAYOUT = load_script("reaper", "inspect_layout")
NO_CLAIM = "no_claim"


async def unsupported_by_server(client: Redis, keys: GroupKeys, redelivery: str) -> str:
    """Return why the policy cannot work with this server, or ''. Raises redis-py's errors."""
    if redelivery == Redelivery.IN_PLACE and not await knows_claim(client, keys.quarantine):
        return NO_CLAIM
    return ""


async def unsupported_layout(client: Redis, stream: str, redelivery: str) -> str:
    """Return why the policy cannot work with this stream, or '' (``inspect_layout.lua``).

    `workers.protocol.calls.declined.explained` explains the reason. Raises redis-py's errors.
    """
    return text(await INSPECT_LAYOUT.run(client, [stream], [redelivery]))
