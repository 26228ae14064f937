"""Reads the history that `reaper.drill.promises` judges, which is the place and the journal of each job of a group."""

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from reaper.drill.promises import DeadJob, FinalState, Pairs
from workers.protocol.events import LifecycleEvent, decode_entry
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import DEAD_PREFIX, RESERVED_PREFIX, pair_up, read_metadata, text

# All at one instant, because a job that moves meanwhile would be seen twice or not at all.
_SNAPSHOT = """
local group = ARGV[1]
local function last_delivered(key)
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local found = {}
    for i = 1, #info, 2 do
      found[info[i]] = info[i + 1]
    end
    if found['name'] == group then
      return found['last-delivered-id']
    end
  end
end
local ready, pending, scheduled = {}, {}, {}
for _, key in ipairs({ KEYS[1], KEYS[2] }) do
  local last = redis.call('EXISTS', key) == 1 and last_delivered(key)
  if last then
    for _, entry in ipairs(redis.call('XRANGE', key, '(' .. last, '+')) do
      ready[#ready + 1] = entry
    end
    for _, row in ipairs(redis.call('XPENDING', key, group, '-', '+', 10000000)) do
      local entry = redis.call('XRANGE', key, row[1], row[1])[1] or { row[1], {} }
      local list = (row[2] == '' or row[3] >= 1000000000) and ready or pending -- given back where it is
      list[#list + 1] = entry
    end
  end
end
for _, key in ipairs({ KEYS[3], KEYS[6] }) do
  for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    scheduled[#scheduled + 1] = cmsgpack.unpack(member).job_id
  end
end
return { ready, pending, scheduled, redis.call('XRANGE', KEYS[4], '-', '+'), redis.call('HLEN', KEYS[5]),
  redis.call('XLEN', KEYS[2]) }
"""

Entry = tuple[bytes, Sequence[bytes]]


async def read_state(client: Redis, keys: GroupKeys) -> FinalState:
    """Return the place of every job of the group at one instant. Read the journal after it, not before."""
    snapshot: Any = await client.eval(
        _SNAPSHOT,
        6,
        keys.stream,
        keys.retry,
        keys.schedule,
        keys.dead,
        keys.quarantine,
        keys.stream_schedule,
        keys.group,
    )
    ready, pending, scheduled, dead, released, retry_entries = snapshot
    return FinalState(
        ready=tuple(_job(entry) for entry in ready),
        pending=tuple(_job(entry) for entry in pending),
        scheduled=tuple(map(text, scheduled)),
        dead=tuple(dead_job(entry) for entry in dead),
        released=released,
        retry_entries=retry_entries,
    )


async def read_events(client: Redis, keys: GroupKeys) -> list[LifecycleEvent]:
    """Return the events of the group's jobs, oldest first."""
    rows: Any = await client.xrange(keys.journal)
    events = [event for entry_id, flat in rows for event in decode_entry(entry_id, flat)]
    return [event for event in events if event.data.get("group") == keys.group]


def user_fields(flat: Sequence[bytes]) -> Pairs:
    """Return the producer's fields, without reserved ones."""
    return [pair for pair in pair_up(flat) if not pair[0].startswith(RESERVED_PREFIX)]


def _job(entry: Entry) -> str:
    entry_id, flat = entry
    return text(read_metadata(entry_id, pair_up(flat)).job_id)


def dead_job(entry: Entry) -> DeadJob:
    """Read an entry of a stream of dead letters."""
    entry_id, flat = entry
    metadata = read_metadata(entry_id, pair_up(flat))
    return DeadJob(
        job=text(metadata.job_id),
        generation=metadata.generation,
        deliveries=metadata.deliveries,
        reason=text(dict(pair_up(flat)).get(DEAD_PREFIX + b"reason", b"")),
        payload=user_fields(flat),
    )
