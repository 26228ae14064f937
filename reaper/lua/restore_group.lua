-- destroyed group -> group: recreates it at its last known position (at the beginning, where the stream is another one), where
-- nobody has yet, and puts the watched entries back as pending.
--
-- KEYS[1] stream     orders                   stream
-- KEYS[2] fence      {orders}:fence:billing   string
-- KEYS[3] agreement  {orders}:group:billing   hash
-- ARGV[1] fence of the caller  ARGV[2] group  ARGV[3] consumer that owns what is put back ('' = nobody: a group that is there
-- is looked at, and the entries are only counted)  ARGV[4] idle in ms they get; none where
-- a worker of ours has given its word: it may run them, and has a visibility timeout to take them back
-- ARGV[5] when the group was made, as of the caller's last look (ms)  ARGV[6…] entry IDs that were pending as far as the leader knows
--
-- Returns {'ok', entries put back, when the group was made, in ms, who made it: 'leader' | 'worker'}, {'exists'} (nobody of
-- ours has made it since), {'unknown'} (no position is known), or {'stale', fence found}.
-- Fence: the whole value is compared.

--- @prelude
--- @heartbeat

local stream, fence, agreement = KEYS[1], KEYS[2], KEYS[3]
local own, group, consumer, idle = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local seen = tonumber(ARGV[5])
local first = 6

-- One that was deleted and made anew has not come as far: with a producer's own IDs, nobody would ever read what lies below the position.
local function is_another_stream(position)
  return redis.call('EXISTS', stream) == 0
    or is_after(position, info_field(redis.call('XINFO', 'STREAM', stream), 'last-generated-id'))
end

local found = redis.call('GET', fence) or ''
if found ~= own then
  return { 'stale', found }
end
redis.call('HDEL', agreement, '') -- harmless, and a write: what follows then works under maxmemory
local position, who = redis.call('HGET', agreement, 'last_id'), 'leader'
local made = whole_number(redis.call('HGET', agreement, 'made'), 0)
if made <= seen and not position then
  return { 'unknown' }
end
if position and is_another_stream(position) then
  position = '0'
end
local reply = position and consumer ~= '' and redis.pcall('XGROUP', 'CREATE', stream, group, position, 'MKSTREAM') or { err = 'BUSYGROUP' }
if type(reply) == 'table' and reply.err then
  if not string.find(reply.err, 'BUSYGROUP') then
    return reply
  elseif made <= seen then
    return { 'exists' }
  end
  position, who = redis.call('HGET', agreement, 'made_from'), 'worker'
else
  made = made_anew(agreement, position)
end

local at = now_ms()
if recovery_waits_ms(read_beat(agreement, at), at, 0) > 0 or some_word_counts(agreement, at) then
  idle = 0
end

local restored = 0
for i = first, #ARGV do
  local entry_id = ARGV[i]
  -- What the group has read by its position and was not acknowledged; the rest is delivered anew anyway.
  if not is_after(entry_id, position) and #redis.call('XRANGE', stream, entry_id, entry_id) == 1
      and #redis.call('XPENDING', stream, group, entry_id, entry_id, 1) == 0 then
    restored = restored + 1
    if consumer ~= '' then
      redis.call('XCLAIM', stream, group, consumer, 0, entry_id, 'IDLE', idle, 'RETRYCOUNT', 1, 'FORCE', 'JUSTID')
    end
  end
end
return { 'ok', restored, made, who }
