-- free, or offered to us -> ours: a replica takes the lease of a group, and writes what the group agrees on. A holder that calls it again
-- keeps its term, and writes the settings anew.
--
-- KEYS[1] stream     orders                   stream
-- KEYS[2] lease      {orders}:lease:billing   string, the holder, with an expiry
-- KEYS[3] agreement  {orders}:group:billing   hash
-- KEYS[4] retry      {orders}:retry:billing   stream, made with its group where the policy needs it: a worker reads both
--                                             streams in one XREADGROUP, which fails whole where one group is missing
-- KEYS[5] journal    {orders}:journal         stream
-- ARGV[1] holder: replica.nonce@TTL, the nonce new for each term  ARGV[2] the lease's TTL in ms  ARGV[3] replica  ARGV[4] group
-- ARGV[5] policy  ARGV[6] visibility timeout in ms  ARGV[7] max_deliveries
-- ARGV[8] '1' = a group that was destroyed is created again, at its last known position (at the beginning of another stream)
-- ARGV[9] journal: '1' = write events  ARGV[10] journal's MAXLEN
-- ARGV[11] token of the term that is to go on ('0' = a new term begins). Then the lease must still be ours
--
-- Returns {1, token, server time in ms, why the policy cannot work here ('' | several_groups | explicit_ids), what was agreed before: policy,
-- visibility_ms, max_deliveries, recovery; position at which the group was created ('' = it was not)},
-- or {0, who holds the lease, for how many ms}: nothing was done.
-- What changes is the next version of the agreement: the moment it was made, in ms. Where a value is lower than before, what was
-- agreed on before is kept for a while as `former_…`, for those who cannot know better yet (prelude).
-- Fence: nobody else holds the lease. Our own value counts as taken: it is what a lost reply looks like. The token is for people. It decides nothing.

--- @prelude
--- @heartbeat

local stream, lease, agreement, retry, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local holder, ttl, group, recovery = ARGV[1], tonumber(ARGV[2]), ARGV[4], 'reaper'

local was, goes_on = redis.call('GET', lease), whole_number(ARGV[11], 0) > 0
if goes_on and not was then
  return { 0, '', 0 }
elseif was and was ~= holder and (goes_on or was ~= 'offer:' .. ARGV[3]) then
  -- Without an expiry, or with one further away than its own TTL (the server's clock was set back), the lease would lock everybody out.
  local left, theirs = redis.call('PTTL', lease), tonumber(string.match(was, '@(%d+)$') or '') or ttl
  if left < 0 or left > theirs then
    redis.call('PEXPIRE', lease, theirs)
    left = theirs
  end
  return { 0, was, left }
end

local refusal = layout_refusal(ARGV[5], stream, at) -- raises where the stream's key holds something else
-- Harmless, and a write: under maxmemory a replica can take the lease all the same.
redis.call('HDEL', agreement, '')
local token = math.max(whole_number(redis.call('HGET', agreement, 'token'), 0), whole_number(ARGV[11], 0))
redis.call('SET', lease, holder, 'PX', ttl) -- first: who may not do this writes nothing
token = (was ~= holder or token == 0) and token + 1 or token -- 0: the hash was lost
redis.call('HSET', agreement, 'token', string.format('%.0f', token))
if was ~= holder and ARGV[9] == '1' then -- an idle group gets no journal only for this
  redis.pcall('XADD', journal, 'NOMKSTREAM', 'MAXLEN', '~', ARGV[10], '*', 'event', 'lease_taken', 'group', group, 'holder', holder,
    'token', string.format('%.0f', token))
end

-- Keeps the higher value for workers that go by it. Without earlier group settings, the value stays that workers have written which
-- joined before there were any (join_group.lua).
local function keep_former(name, before, is_open)
  local known = whole_number(before, nil)
  if known then
    local kept = is_open and whole_number(redis.call('HGET', agreement, name), 0) or 0
    redis.call('HSET', agreement, name, string.format('%.0f', math.max(known, kept)))
  end
end

local before = redis.call('HMGET', agreement, 'policy', 'visibility_ms', 'max_deliveries', 'recovery')
if before[1] ~= ARGV[5] or before[2] ~= ARGV[6] or before[3] ~= ARGV[7] or before[4] ~= recovery then
  local known = redis.call('HMGET', agreement, 'version', 'former_until')
  redis.call('HSET', agreement, 'version', string.format('%.0f', math.max(at, whole_number(known[1], 0) + 1)))
  if whole_number(before[2], math.huge) > tonumber(ARGV[6]) or whole_number(before[3], math.huge) > tonumber(ARGV[7]) then
    local is_open = whole_number(known[2], 0) > at
    keep_former('former_visibility_ms', before[2], is_open)
    keep_former('former_max_deliveries', before[3], is_open)
    redis.call('HSET', agreement, 'former_until', string.format('%.0f', at + FORMER_MS))
  end
end
redis.call('HSET', agreement, 'policy', ARGV[5], 'visibility_ms', ARGV[6], 'max_deliveries', ARGV[7], 'recovery', recovery)
note_served(agreement, ttl)

-- Creates a missing group where it stood. A stream that was deleted and filled anew has not come as far: there it begins at 0.
local function create_again(last_id)
  local is_there = redis.call('EXISTS', stream) == 1
  if not string.match(last_id or '', '^%d+%-%d+$') or group_position(stream, group) then
    return ''
  elseif not is_there or is_after(last_id, info_field(redis.call('XINFO', 'STREAM', stream), 'last-generated-id')) then
    last_id = '0'
  end
  redis.call('XGROUP', 'CREATE', stream, group, last_id, 'MKSTREAM')
  return last_id
end
local created = ARGV[8] == '1' and create_again(redis.call('HGET', agreement, 'last_id')) or ''
if ARGV[5] == 'retry-stream' then
  redis.pcall('XGROUP', 'CREATE', retry, group, '0', 'MKSTREAM')
end
return { 1, token, at, refusal or '', before[1] or '', before[2] or '', before[3] or '', before[4] or '', created }
