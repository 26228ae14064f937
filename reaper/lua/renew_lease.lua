-- leader -> leader: the holder extends its lease.
--
-- KEYS[1] lease      {reaper}:lease      string
-- KEYS[2] step_down  {reaper}:step_down  string, with an expiry: the holder that was asked to step down
-- ARGV[1] holder  ARGV[2] lease TTL in ms
--
-- Returns {code, server time in ms}: 1 renewed, 0 not the holder, 2 asked to step down, so not renewed.
-- Fence: the holder is compared.

--- @prelude

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return { 0, at }
end
if redis.call('GET', KEYS[2]) == ARGV[1] then
  return { 2, at }
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { 1, at }
