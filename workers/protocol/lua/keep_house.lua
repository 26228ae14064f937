-- Now and then: remembers where the group stands, forgets the words of workers that have gone, and deletes consumers that hold
-- nothing and were silent. By the leader (embedded: by any worker).
--
-- KEYS[1] stream     orders                   stream
-- KEYS[2] fence      {orders}:fence:billing   string
-- KEYS[3] agreement  {orders}:group:billing   hash
-- ARGV[1] fence of the caller ('' = an embedded worker's, which has none)  ARGV[2] group  ARGV[3] silence in ms after which a consumer goes ('' = never)
--
-- Returns {'ok', consumers deleted} or {'stale', fence found}.
-- Fence: the whole value is compared; without one, the group must have agreed on embedded recovery. A consumer with pending entries is never deleted: they would go with it.

--- @prelude

local stream, fence, agreement = KEYS[1], KEYS[2], KEYS[3]
local own, group, silence = ARGV[1], ARGV[2], tonumber(ARGV[3])

local found = refused_by_fence(own, fence, agreement)
if found then
  return { 'stale', found }
end
redis.call('HDEL', agreement, '') -- harmless, and a write: what follows then works under maxmemory
forget_words(agreement, now_ms())

for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  if info_field(info, 'name') == group then
    redis.call('HSET', agreement, 'last_id', info_field(info, 'last-delivered-id'))
  end
end

local deleted = 0
if silence then
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    if info_field(info, 'pending') == 0 and info_field(info, 'idle') > silence then
      redis.call('XGROUP', 'DELCONSUMER', stream, group, info_field(info, 'name'))
      deleted = deleted + 1
    end
  end
end
return { 'ok', deleted }
