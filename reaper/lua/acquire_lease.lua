-- no leader -> leader: takes the lease, and with it the next fencing token.
--
-- KEYS[1] lease     {reaper}:lease     string, the holder, with an expiry
-- KEYS[2] token     {reaper}:token     counter
-- KEYS[3] replicas  {reaper}:replicas  hash
-- KEYS[4] journal   {reaper}:journal   stream
-- KEYS[5] step_down {reaper}:step_down string, with an expiry: the holder that was asked to step down
-- ARGV[1] holder: replica.nonce@TTL, the nonce new for each attempt  ARGV[2] lease TTL in ms  ARGV[3] journal's MAXLEN
--
-- Returns {won (1|0), token (0 when lost), holder now, lease's remaining ms, server time in ms}.
-- Lost with nobody as holder: this replica was asked to step down, and leaves the lease to the others for so long.
-- Fence: SET NX. Our own value counts as won: it is what a lost reply looks like. Its expiry is set again.

local lease, token, replicas, journal, step_down = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local holder, ttl, maxlen = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

--- @prelude

-- Harmless, and a write: under maxmemory a new leader can be elected all the same.
redis.pcall('HDEL', replicas, '')

local current = redis.call('GET', lease)
if current and current ~= holder then
  local left = redis.call('PTTL', lease)
  -- Without an expiry, or with one further away than any lease lasts (the server's clock was set back), the lease
  -- would lock everybody out.
  -- A holder names its own TTL, which may be longer than ours while settings are rolled out.
  local theirs = tonumber(string.match(current, '@(%d+)$') or '') or ttl
  if left < 0 or left > theirs then
    redis.call('PEXPIRE', lease, theirs)
    left = theirs
  end
  return { 0, 0, current, left, at }
end

if current == holder then
  redis.call('PEXPIRE', lease, ttl)
  local held = tonumber(redis.call('GET', token) or '') or redis.call('INCR', token)
  return { 1, held, holder, ttl, at }
end

-- A holder is replica.nonce@TTL: the replica stays the same from attempt to attempt.
local function replica_of(name)
  return string.match(name, '^(.*)%.%x+@%d+$') or name
end
local asked = redis.call('GET', step_down)
if asked and replica_of(asked) == replica_of(holder) then
  local left = redis.call('PTTL', step_down)
  return { 0, 0, '', left > 0 and left or ttl, at }
end

local number = redis.call('INCR', token)
redis.call('SET', lease, holder, 'NX', 'PX', ttl)
write_event({ 'event', 'lease_acquired', 'holder', holder, 'token', number })
return { 1, number, holder, ttl, at }
