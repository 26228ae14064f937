-- Pauses or resumes recovery of a group. While it is paused, no replica recovers or releases a job there.
--
-- KEYS[1] settings  {orders}:group:billing  hash
-- ARGV[1] '1' = pause, '0' = resume
--
-- Returns 1 if that changed the group, else 0.
-- Fence: none. The scripts of all replicas read it.

local settings = KEYS[1]

-- Harmless, and a write, so that an operator can pause a group under maxmemory.
redis.call('HDEL', settings, '')
if ARGV[1] == '0' then
  return redis.call('HDEL', settings, 'paused')
end
return redis.call('HSET', settings, 'paused', '1')
