"""Fills streams, leaves deliveries behind, and looks at them later. All by scripts, on the server's clock."""

from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from tests.support.waiting import wait_until
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import entry_ms

PAYLOAD_BYTES = 100
PAGE = 10_000
POLL_TIMEOUT_S = 60.0

_ENQUEUE = """
for _ = 1, tonumber(ARGV[1]) do
  redis.call('XADD', KEYS[1], '*', 'payload', ARGV[2])
end
local time = redis.call('TIME')
return time[1] * 1000 + math.floor(time[2] / 1000)
"""

_DELIVER = """
redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', ARGV[3], 'STREAMS', KEYS[1], '>')
"""

# One instant for the clock and for all idle times.
_DELIVERED_AT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local delivered = {}
for i, row in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[2])) do
  delivered[i] = { row[1], now - row[3] }
end
return delivered
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group has come."""

    pending: int
    unread: bool
    last_entry_ms: int
    """When the stream's last entry was added."""

    @property
    def done(self) -> bool:
        """Tell whether everything was read and settled."""
        return not self.unread and not self.pending


async def create_group(client: Redis, keys: GroupKeys) -> None:
    """Create the stream and its group."""
    await client.xgroup_create(keys.stream, keys.group, id="0", mkstream=True)


async def enqueue(client: Redis, stream: str, jobs: int) -> int:
    """Add ``jobs`` entries of 100 bytes in one call. Return the server's time in ms when they can be read."""
    at_ms: int = await client.eval(_ENQUEUE, 1, stream, str(jobs), "x" * PAYLOAD_BYTES)
    return at_ms


async def strand(client: Redis, keys: GroupKeys, jobs: int, consumer: str = "gone") -> None:
    """Add ``jobs`` entries and deliver them to a consumer that will never settle them."""
    for size in _pages(jobs):
        await enqueue(client, keys.stream, size)
        await deliver(client, keys, size, consumer)


async def deliver(client: Redis, keys: GroupKeys, jobs: int, consumer: str = "gone") -> None:
    """Deliver the next ``jobs`` entries to ``consumer``, without carrying them over the wire."""
    await client.eval(_DELIVER, 1, keys.stream, keys.group, consumer, str(jobs))


def _pages(total: int) -> list[int]:
    return [min(PAGE, total - start) for start in range(0, total, PAGE)]


async def delivered_at(client: Redis, keys: GroupKeys, most: int) -> dict[bytes, int]:
    """Return when each pending entry was delivered, in ms of the server's clock."""
    rows: Any = await client.eval(_DELIVERED_AT, 1, keys.stream, keys.group, str(most))
    found: dict[bytes, int] = dict(rows)
    return found


async def pending(client: Redis, keys: GroupKeys) -> int:
    """Return how many deliveries the group has not settled."""
    summary = await client.execute_command("XPENDING", keys.stream, keys.group)
    return int(summary[0])


async def progress(client: Redis, keys: GroupKeys) -> Progress:
    """Return how far the group has come."""
    async with client.pipeline(transaction=True) as calls:
        calls.xinfo_stream(keys.stream)
        calls.xinfo_groups(keys.stream)
        info, groups = await calls.execute()
    group = next(group for group in groups if group["name"] == keys.group.encode())
    last = info["last-generated-id"]
    return Progress(group["pending"], group["last-delivered-id"] != last, entry_ms(last))


async def wait_for_pending(client: Redis, keys: GroupKeys, count: int, timeout: float = POLL_TIMEOUT_S) -> None:
    """Wait until exactly ``count`` deliveries are pending."""

    async def reached() -> bool:
        return await pending(client, keys) == count

    await wait_until(reached, f"{count:,} deliveries of {keys.name} are pending", timeout)


async def server_ms(client: Redis) -> int:
    """Return the server's time in ms."""
    seconds, microseconds = await client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000
