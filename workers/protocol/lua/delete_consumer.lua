-- consumer without deliveries -> gone: a worker clears away its own consumer, or one of an earlier process.
-- XGROUP DELCONSUMER drops what its consumer holds, so it may only run where a script has seen that this is nothing.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream
-- KEYS[2] settings  {orders}:group:billing              hash: the words of those that go are forgotten; named for the stream alone,
--                                                     whose consumers words speak of
-- ARGV[1] group  ARGV[2…] consumers
--
-- Returns one number a consumer: 1 gone, 0 kept, since it holds something.
-- The word of one that was not there stays: somebody else has deleted it, with what it held, and the word is what tells that
-- (maintain_group.lua).
-- Raises NOGROUP where the group is gone.
-- Fence: none needed; nothing pending is touched.

local source, settings, group = KEYS[1], KEYS[2], ARGV[1]

-- Harmless, and a write: a worker can clear up under maxmemory too (6.2 counts all of XGROUP as using memory).
redis.call('XACK', source, group, '0-0')
local results, is_there = {}, {}
for _, info in ipairs(settings and redis.call('XINFO', 'CONSUMERS', source, group) or {}) do
  is_there[info[2]] = true -- the first field is its name
end
for i = 2, #ARGV do
  if #redis.call('XPENDING', source, group, '-', '+', 1, ARGV[i]) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', source, group, ARGV[i])
    if settings then
      redis.call('HDEL', settings, 'settled:' .. ARGV[i]) -- the reply that was kept for it (ack.lua)
    end
    if is_there[ARGV[i]] then
      redis.call('HDEL', settings, 'member:' .. ARGV[i])
    end
    results[i - 1] = 1
  else
    results[i - 1] = 0
  end
end
return results
