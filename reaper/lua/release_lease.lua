-- leader -> no leader: the holder gives the lease up. The journal entry wakes the followers, who block on it.
--
-- KEYS[1] lease    {reaper}:lease    string
-- KEYS[2] journal  {reaper}:journal  stream
-- ARGV[1] holder  ARGV[2] token  ARGV[3] why  ARGV[4] journal's MAXLEN
--
-- Returns 1 released, 0 not ours.
-- Fence: the holder is compared.

local journal, maxlen = KEYS[2], tonumber(ARGV[4])

--- @prelude

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
write_event({ 'event', 'lease_released', 'holder', ARGV[1], 'token', ARGV[2], 'reason', ARGV[3] })
return 1
