-- leader -> leader: the holder moves its lease's expiry, and registers what it is doing (register_replica.lua) by the way.
--
-- KEYS[1] lease      {reaper}:lease      string
-- KEYS[2] step_down  {reaper}:step_down  string, with an expiry: the holder that was asked to step down
-- KEYS[3] replicas   {reaper}:replicas   hash
-- ARGV[1] holder  ARGV[2] lease TTL in ms  ARGV[3] replica ID  ARGV[4] its heartbeat (JSON; '' = none)
--
-- Returns {code, server time in ms, heartbeat registered (1|0)}: 1 renewed, 0 somebody else holds it, or nobody, 2 asked to
-- step down: not renewed. A heartbeat that cannot be written is no error: a lease is renewed whatever else is broken.
-- Fence: the holder is compared.

--- @prelude

local at = now_ms()
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return { 0, at, 0 }
end
if redis.call('GET', KEYS[2]) == ARGV[1] then
  return { 2, at, 0 }
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local is_told = ARGV[4] ~= '' and type(redis.pcall('HSET', KEYS[3], ARGV[3], ARGV[4])) == 'number'
return { 1, at, is_told and 1 or 0 }
