-- free, or offered to us -> ours: a replica takes the lease of a group, and writes the group settings. A holder that calls it again keeps
-- its term, and writes the settings anew.
--
-- KEYS[1] to KEYS[8] as in keys.lua (KEYS[1] is the stream; KEYS[4], KEYS[6] and KEYS[7] are named only)
-- KEYS[9] lease  {orders}:lease:billing  string, the holder, with an expiry
-- ARGV[1] group  ARGV[2] journal's MAXLEN
-- ARGV[3] holder: replica.nonce@TTL, the nonce new for each term  ARGV[4] the lease's TTL in ms  ARGV[5] replica
-- ARGV[6] policy  ARGV[7] visibility timeout in ms  ARGV[8] max_deliveries
-- ARGV[9] token of the term that is to go on ('0' = a new term begins). Then the lease must still be ours
--
-- Returns {1, token, server time in ms, reason why the policy cannot work ('' | several_groups | explicit_ids), the settings before: policy,
-- visibility_ms, max_deliveries, recovery},
-- or {0, lease of another replica, ms that it has left}.
-- If a value is lower than before, the former one is kept for a while as `former_…`, for workers that still use it.
-- Fence: no other replica holds the lease. The caller's own value counts as taken, because the reply to an earlier call may be lost.

--- @keys
--- @prelude

local FORMER_MS = 35000 -- workers read the group settings every 30 s (REFRESH_S in workers/loop/membership.py), and a call takes up to 5 s
local lease, holder, ttl, policy, visibility, limit, goes_on = KEYS[9], ARGV[3], tonumber(ARGV[4]), ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])

local was = redis.call('GET', lease)
if goes_on > 0 and not was then
  return { 0, '', 0 }
elseif was and was ~= holder and (goes_on > 0 or was ~= 'offer:' .. ARGV[5]) then
  -- Without an expiry, or with one further away than its own TTL (the server's clock was set back), the lease would lock everybody out.
  local left, theirs = redis.call('PTTL', lease), tonumber(string.match(was, '@(%d+)$') or '') or ttl
  if left < 0 or left > theirs then
    redis.call('PEXPIRE', lease, theirs)
    left = theirs
  end
  return { 0, was, left }
end

local unsupported = unsupported_layout(policy) -- raises where the stream's key holds something else
redis.call('HDEL', settings, '') -- harmless, and a write: under maxmemory a replica can take the lease all the same
local token = math.max(whole_number(redis.call('HGET', settings, 'token'), 0), goes_on)
token = (was ~= holder or token == 0) and token + 1 or token -- 0: the hash was lost
redis.call('HSET', settings, 'token', digits(token)) -- first: a replica that may not write this takes no lease with the former token
redis.call('SET', lease, holder, 'PX', ttl)
if was ~= holder and maxlen > 0 then -- an idle group gets no journal only for this
  redis.pcall('XADD', journal, 'NOMKSTREAM', 'MAXLEN', '~', maxlen, '*', 'event', 'lease_taken', 'group', group, 'holder', holder,
    'token', digits(token))
end

local in_force = read_settings()
local before = redis.call('HMGET', settings, 'policy', 'visibility_ms', 'max_deliveries', 'recovery')
local had_visibility, had_limit = whole_number(before[2], 0), whole_number(before[3], 0)

-- Keeps the higher value for workers that go by it.
local function keep_former(name, known, is_open)
  local kept = is_open and whole_number(redis.call('HGET', settings, name), 0) or 0
  redis.call('HSET', settings, name, digits(math.max(known, kept)))
end

if had_visibility > tonumber(visibility) or had_limit > tonumber(limit) then
  local is_open = whole_number(redis.call('HGET', settings, 'former_left'), 0) > 0
  keep_former('former_visibility_ms', had_visibility, is_open)
  keep_former('former_max_deliveries', had_limit, is_open)
  -- The next beat takes off what has passed since the last one, unless that is a gap.
  local since_beat = in_force and not has_gap(in_force) and math.max(0, at - in_force.beat) or 0
  redis.call('HSET', settings, 'former_left', digits(FORMER_MS + since_beat))
end
redis.call('HSET', settings, 'policy', policy, 'visibility_ms', visibility, 'max_deliveries', limit, 'recovery', 'reaper')

if policy == 'retry-stream' then
  -- A worker reads both streams in one XREADGROUP, which fails whole where one group is missing.
  redis.pcall('XGROUP', 'CREATE', retry, group, '0', 'MKSTREAM')
end
return { 1, token, at, unsupported or '', before[1] or '', before[2] or '', before[3] or '', before[4] or '' }
