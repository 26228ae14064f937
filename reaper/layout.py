"""Whether a redelivery policy can work with a stream as it is."""

from redis.asyncio import Redis

from workers.protocol.messages import text
from workers.protocol.scripts import load_script

INSPECT_LAYOUT = load_script("reaper", "inspect_layout")


async def layout_refusal(client: Redis, stream: str, redelivery: str) -> str:
    """Return why the policy cannot work there, or '' (``inspect_layout.lua``). Writes nothing.

    `workers.protocol.calls.refusals.explained` says what the reason means. Raises what redis-py raises.
    """
    return text(await INSPECT_LAYOUT.run(client, [stream], [redelivery]))
