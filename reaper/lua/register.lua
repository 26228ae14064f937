-- A replica registers, and gets the live replicas that may hold groups.
--
-- KEYS[1] replicas  {reaper}:replicas  hash: the heartbeat of each replica (JSON)
-- KEYS[2] live      {reaper}:live      sorted set: digest of the settings, a slash and the ID, by the time of the latest registration
-- KEYS[3] drained   {reaper}:drained   sorted set: ID, by the time until which it takes no group
-- KEYS[4] groups    {reaper}:groups    hash: the watched groups of each replica, one a line
-- KEYS[5] watched   {reaper}:watched   hash: groups that settings do not name; field 'version' changes with any other
-- KEYS[6] scanned   {reaper}:scanned   sorted set: digest, by the time of the next scan for the patterns of these settings
-- ARGV[1] digest  ARGV[2] ID  ARGV[3] heartbeat (JSON, '' = as before)  ARGV[4] ms after which a silent replica is not alive
-- ARGV[5] ms after which it is forgotten  ARGV[6] the groups that it watches ('' = as before)
-- ARGV[7] ms from one scan to the next ('' = this replica does not scan)
--
-- Returns {server time in ms, 1 if its groups are known, version of the groups in `watched` ('' = none), 1 if it is the turn of this
-- replica to scan, else 0; ID of a live replica with the same digest that may hold groups…}.
-- Fence: none. A replica writes its own fields, and removes replicas that have been silent for long.

--- @prelude

local replicas, live, drained, groups, scanned, digest, id = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], ARGV[1], ARGV[2]
local gone_ms, forget_ms, interval = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[7])

redis.call('HDEL', replicas, '') -- harmless, and a write: a replica can register under maxmemory too
for _, member in ipairs(redis.call('ZRANGE', live, 0, -1)) do
  local theirs, age = string.match(member, '/(.*)$') or '', math.abs(at - tonumber(redis.call('ZSCORE', live, member)))
  if theirs == id or age > forget_ms then -- ours may be of other settings; and the server's clock may have been set back
    redis.call('ZREM', live, member)
    if theirs ~= id then
      redis.call('HDEL', replicas, theirs)
      redis.call('HDEL', groups, theirs)
    end
  end
end
redis.call('ZADD', live, digits(at), digest .. '/' .. id)
if ARGV[3] ~= '' then
  redis.call('HSET', replicas, id, ARGV[3])
end
if ARGV[6] ~= '' then
  redis.call('HSET', groups, id, ARGV[6])
end
redis.call('ZREMRANGEBYSCORE', drained, '-inf', digits(at))

local function takes_turn()
  redis.call('ZREMRANGEBYSCORE', scanned, '-inf', digits(at))
  local next_ms = tonumber(redis.call('ZSCORE', scanned, digest) or '')
  if next_ms and next_ms <= at + interval then -- a later time is of a clock that was set back
    return false
  end
  redis.call('ZADD', scanned, digits(at + interval), digest)
  return true
end

local version = redis.call('HGET', KEYS[5], 'version') or ''
local reply = { at, redis.call('HEXISTS', groups, id), version, interval and takes_turn() and 1 or 0 }
for _, member in ipairs(redis.call('ZRANGEBYSCORE', live, digits(at - gone_ms), digits(at + gone_ms))) do
  local theirs, other = string.match(member, '^(%x+)/(.*)$')
  if theirs == digest and not redis.call('ZSCORE', drained, other) then
    reply[#reply + 1] = other
  end
end
return reply
