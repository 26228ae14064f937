-- The token counter was lost or went back (a failover, a deletion): the holder of the lease lifts it past what it met.
--
-- KEYS[1] lease  {reaper}:lease  string
-- KEYS[2] token  {reaper}:token  counter
-- ARGV[1] holder  ARGV[2] the token found in a fence
--
-- Returns 1 raised (or high enough already), 0 not the holder.
-- Fence: the holder is compared, so a paused leader cannot touch the counter.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
-- Changes nothing (a counter has no expiry), and is a write: what follows then works under maxmemory.
redis.call('PERSIST', KEYS[2])
local current = tonumber(redis.call('GET', KEYS[2]) or '') or 0
if current < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[2], ARGV[2])
end
return 1
