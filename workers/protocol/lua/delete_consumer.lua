-- consumer without deliveries -> deleted: a worker deletes its own consumer, or one of an earlier process.
-- XGROUP DELCONSUMER drops the pending entries of its consumer, so only a script that has seen that there are none may run it.
--
-- KEYS[1] source    orders, or {orders}:retry:billing  stream
-- KEYS[2] settings  {orders}:group:billing             hash, named for the stream alone, whose consumers have registrations
-- ARGV[1] group  ARGV[2…] consumers
--
-- Returns how many were deleted. The registration of a missing consumer stays: a third party has deleted it with its deliveries, and the
-- registration is the sign of that (maintain_group.lua).
-- Raises NOGROUP if the group is missing.
-- Fence: none needed; no pending entry is touched.

local source, settings, group = KEYS[1], KEYS[2], ARGV[1]

--- @prelude

open_for_writing(source, group) -- 6.2 counts all of XGROUP as using memory
local pending, deleted = {}, 0
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', source, group)) do
  pending[info_field(info, 'name')] = info_field(info, 'pending')
end
for i = 2, #ARGV do
  local consumer, held = ARGV[i], pending[ARGV[i]]
  if held == 0 then
    redis.call('XGROUP', 'DELCONSUMER', source, group, consumer)
    deleted = deleted + 1
  end
  if settings and (held or 0) == 0 then
    redis.call('HDEL', settings, 'settled:' .. consumer, (held and 'registration:' or 'settled:') .. consumer)
  end
end
return deleted
