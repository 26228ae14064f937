-- Now and then: remembers where the group stands, forgets the words of workers that have gone, deletes consumers that hold
-- nothing and were silent, and sees whether the group is still the one it was. By the leader (embedded: by any worker).
--
-- A group is known by a consumer of ours, the one that gets what is put back. Where it was seen before (`marked`, the moment),
-- is not there, and nothing is pending since before that moment, somebody has destroyed the group, and made it again without a
-- word to anybody (XGROUP CREATE). That is noted as by those who say so (`made`, `made_from`).
--
-- KEYS[1] stream     orders                   stream
-- KEYS[2] fence      {orders}:fence:billing   string
-- KEYS[3] agreement  {orders}:group:billing   hash
-- ARGV[1] fence of the caller ('' = an embedded worker's, which has none)  ARGV[2] group  ARGV[3] silence in ms after which a consumer goes ('' = never)
--
-- Returns {'ok', consumers deleted, was the group made again since the last look: 0 no, 1 by one of ours, 2 by
-- somebody else; names of the consumers deleted…} or {'stale', fence found}.
-- Fence: the whole value is compared; without one, the group must have agreed on embedded recovery. A consumer with pending entries is never deleted: they would go with it.

--- @prelude

local stream, fence, agreement = KEYS[1], KEYS[2], KEYS[3]
local own, group, silence = ARGV[1], ARGV[2], tonumber(ARGV[3])
local MOST_DELETED = 1000 -- in one call; the others go with the next
local ABSENT_MS = 600000 -- longer than from one look of the leader to the next

local found = refused_by_fence(own, fence, agreement)
if found then
  return { 'stale', found }
end
redis.call('HDEL', agreement, '') -- harmless, and a write: what follows then works under maxmemory

local position
for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  if info_field(info, 'name') == group then
    position = info_field(info, 'last-delivered-id')
    redis.call('HSET', agreement, 'last_id', position)
  end
end

local deleted, held_by, is_marked = {}, {}, false
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local name, pending = info_field(info, 'name'), info_field(info, 'pending')
  if name == RESTORED_CONSUMER then
    is_marked = true
  elseif silence and pending == 0 and #deleted < MOST_DELETED and info_field(info, 'idle') > silence then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, name)
    redis.call('HDEL', agreement, 'member:' .. name)
    deleted[#deleted + 1] = name
  else
    held_by[name] = pending
  end
end

-- A word whose consumer is gone says that somebody else deleted it: workers of ours, and we, take both away.
local at = now_ms()
forget_words(agreement, at, function(consumer)
  local pending = held_by[consumer]
  return pending and pending > 0 and math.huge or ABSENT_MS -- it may have been made again, and its worker died
end)

local made = redis.call('HMGET', agreement, 'made', 'made_seen')
local remade = made[2] and (made[1] or '0') ~= made[2] and 1 or 0 -- by one of ours, since the last look
if position and not is_marked then
  local seen = whole_number(redis.call('HGET', agreement, 'marked'), nil)
  if seen and #redis.call('XPENDING', stream, group, 'IDLE', string.format('%.0f', math.max(0, at - seen)), '-', '+', 1) == 0 then
    made_anew(agreement, position)
    remade = 2
  end
  -- Where we may not, or there is no memory, nothing can be told from its absence.
  is_marked = type(redis.pcall('XGROUP', 'CREATECONSUMER', stream, group, RESTORED_CONSUMER)) == 'number'
end
redis.call('HSET', agreement, 'made_seen', redis.call('HGET', agreement, 'made') or '0')
if is_marked then
  redis.call('HSET', agreement, 'marked', string.format('%.0f', at))
else
  redis.call('HDEL', agreement, 'marked')
end
return { 'ok', #deleted, remade, unpack(deleted) }
