-- The brake of a group: while it is on, no replica recovers or releases anything there.
--
-- KEYS[1] agreement  {orders}:group:billing  hash
-- ARGV[1] '1' = pause, '0' = resume
--
-- Returns 1 changed, 0 it was so already.
-- Fence: none; it is an operator's word, and the scripts of every replica honour it.

local agreement = KEYS[1]

-- Harmless, and a write: an operator can pull the brake under maxmemory too.
redis.call('HDEL', agreement, '')
if ARGV[1] == '0' then
  return redis.call('HDEL', agreement, 'paused')
end
return redis.call('HSET', agreement, 'paused', '1')
