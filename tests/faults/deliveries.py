"""Sets the age of deliveries on the server, so that they are overdue at once, and stay so.

A test that waited for a visibility timeout would need a short one, and a busy machine would keep live workers from
extending within it. Each call is one script, so no process sees the state in between.
"""

from typing import Any

from redis.asyncio import Redis

from tests.support.waiting import wait_until

_READ = """
local source, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', ARGV[3], 'STREAMS', source, '>')
local entry_ids = {}
for _, entry in ipairs(read and read[1][2] or {}) do
  entry_ids[#entry_ids + 1] = entry[1]
  redis.call('XCLAIM', source, group, consumer, 0, entry[1], 'IDLE', ARGV[4], 'RETRYCOUNT', ARGV[5], 'JUSTID')
end
return entry_ids
"""
_AGE = """
local source, group = KEYS[1], ARGV[1]
local aged = {}
if redis.call('EXISTS', source) == 0 then
  return aged
end
for _, row in ipairs(redis.call('XPENDING', source, group, '-', '+', 1000000)) do
  local chosen = #ARGV == 2
  for i = 3, #ARGV do
    chosen = chosen or ARGV[i] == row[2]
  end
  if chosen then
    redis.call('XCLAIM', source, group, row[2], 0, row[1], 'IDLE', ARGV[2], 'RETRYCOUNT', row[4], 'JUSTID')
    aged[#aged + 1] = row[1]
  end
end
return aged
"""


async def read_long_ago(
    client: Redis, source: str, group: str, consumer: str, count: int, idle_ms: int, times: int = 1
) -> list[bytes]:
    """Let ``consumer`` have read ``count`` ready entries that long ago, for the ``times``-th time. Return their IDs."""
    entry_ids: Any = await client.eval(_READ, 1, source, group, consumer, count, idle_ms, times)
    return list(entry_ids)


async def age(client: Redis, source: str, group: str, idle_ms: int, *consumers: str) -> list[bytes]:
    """Set the time since the last heartbeat for the deliveries of ``consumers``, or all. Return entry IDs.

    A live owner that extends them makes them young again, so they must belong to consumers that cannot.
    """
    await client.ping()  # calls that a consumer has sent before its death or pause are done by the time of the answer
    entry_ids: Any = await client.eval(_AGE, 1, source, group, idle_ms, *consumers)
    return list(entry_ids)


async def live_on(client: Redis, source: str, group: str, visibility_ms: int, *, thirds: int) -> None:
    """Let so many thirds of a visibility timeout pass for all that is pending, and see it extended each time.

    Its owners must extend more often than every few seconds.
    """
    third_ms = visibility_ms // 3
    for _ in range(thirds):
        held = await age(client, source, group, third_ms)

        async def all_extended(held: list[bytes] = held) -> bool:
            rows: Any = await client.execute_command("XPENDING", source, group, "-", "+", 100_000)
            idle = {row[0]: row[2] for row in rows}
            return all(idle[entry_id] < third_ms for entry_id in held)

        await wait_until(all_extended, "all that is held is extended")
