-- The brake of a group: while it is on, no replica recovers or releases anything there.
--
-- KEYS[1] settings  {orders}:group:billing  hash
-- ARGV[1] '1' = pause, '0' = resume
--
-- Returns 1 changed, 0 it was so already.
-- Fence: none; it is an operator's word, and the scripts of every replica honour it.

local settings = KEYS[1]

-- Harmless, and a write: an operator can pull the brake under maxmemory too.
redis.call('HDEL', settings, '')
if ARGV[1] == '0' then
  return redis.call('HDEL', settings, 'paused')
end
return redis.call('HSET', settings, 'paused', '1')
