-- destroyed group -> group: recreates it at its last known position and puts the watched entries back as pending.
--
-- KEYS[1] stream     orders                   stream
-- KEYS[2] fence      {orders}:fence:billing   string
-- KEYS[3] agreement  {orders}:group:billing   hash
-- ARGV[1] fence of the caller  ARGV[2] group  ARGV[3] consumer that owns what is put back  ARGV[4] idle in ms they get
-- ARGV[5…] entry IDs that were pending as far as the leader knows
--
-- Returns {'ok', entries put back}, {'exists'}, {'unknown'} (no position is known), or {'stale', fence found}.
-- Fence: the whole value is compared.

--- @prelude

local stream, fence, agreement = KEYS[1], KEYS[2], KEYS[3]
local own, group, consumer, idle = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local first = 5

local found = redis.call('GET', fence) or ''
if found ~= own then
  return { 'stale', found }
end
redis.call('HDEL', agreement, '') -- harmless, and a write: what follows then works under maxmemory
local position = redis.call('HGET', agreement, 'last_id')
if not position then
  return { 'unknown' }
end
local reply = redis.pcall('XGROUP', 'CREATE', stream, group, position, 'MKSTREAM')
if type(reply) == 'table' and reply.err then
  if string.find(reply.err, 'BUSYGROUP') then
    return { 'exists' }
  end
  return reply
end
local restored = 0
for i = first, #ARGV do
  -- What the group has read by its position and was not acknowledged; the rest is delivered anew anyway.
  if not is_after(ARGV[i], position) and #redis.call('XRANGE', stream, ARGV[i], ARGV[i]) == 1 then
    restored = restored
      + #redis.call('XCLAIM', stream, group, consumer, 0, ARGV[i], 'IDLE', idle, 'RETRYCOUNT', 1, 'FORCE', 'JUSTID')
  end
end
return { 'ok', restored }
