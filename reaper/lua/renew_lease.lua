-- leader -> leader: the holder moves its lease's expiry.
--
-- KEYS[1] lease  {reaper}:lease  string
-- ARGV[1] holder  ARGV[2] lease TTL in ms
--
-- Returns {renewed (1|0), server time in ms}. 0: somebody else holds it, or nobody.
-- Fence: the holder is compared.

--- @prelude

local at = now_ms()
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return { 0, at }
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { 1, at }
