-- leader -> leader that was asked to step down: it releases the lease at its next renewal, and its replica leaves the
-- lease to the others for a while. An operator's word; nothing else changes.
--
-- KEYS[1] lease      {reaper}:lease      string
-- KEYS[2] step_down  {reaper}:step_down  string, with an expiry
-- ARGV[1] the holder that is meant  ARGV[2] for how long its replica may not be elected, in ms
--
-- Returns 1 asked (again), 0 not the holder any more: nothing was done.
-- Fence: the holder is compared, so nobody is asked who has only just been elected.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
-- Harmless, and a write: an operator can ask under maxmemory too.
redis.call('PERSIST', KEYS[2])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return 1
