-- earlier term -> this term: the leader installs its fence in a group and writes what the group agrees on.
--
-- KEYS[1] stream     orders                   stream
-- KEYS[2] fence      {orders}:fence:billing   string namespace:token:holder
-- KEYS[3] agreement  {orders}:group:billing   hash
-- KEYS[4] retry      {orders}:retry:billing   stream, made with its group where the policy needs it: a worker reads both
--                                             streams in one XREADGROUP, which fails whole where one group is missing
-- ARGV[1] namespace  ARGV[2] token  ARGV[3] holder  ARGV[4] group
-- ARGV[5] policy  ARGV[6] visibility timeout in ms  ARGV[7] max_deliveries  ARGV[8] recovery mode
-- ARGV[9] for how long the leader serves the group without another sign of life, in ms
-- ARGV[10] '1' = a group that was destroyed is created again, at its last known position (at the beginning of another stream)
--
-- Returns {code, detail, what was agreed before: policy, visibility_ms, max_deliveries, recovery; position at which the group was
-- created ('' = it was not)}:
--   1 installed, detail = why the policy cannot work here ('' | several_groups | explicit_ids)
--   2 a token at least as high stands there: detail = that token; raise the counter and start a new term
--   3 another namespace serves this group: detail = its name
-- What changes is the next version of the agreement: the moment it was made, in ms. Where a value is lower than before, what was
-- agreed on before is kept for a while as `former_…`, for those who cannot know better yet (prelude).
-- Fence: token compared with the fence and with the copy of it in the agreement (an evicted fence lets nobody back in).

--- @prelude
--- @heartbeat

local stream, fence, agreement, retry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local namespace, token, holder, group = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

local own = namespace .. ':' .. ARGV[2] .. ':' .. holder
local current = redis.call('GET', fence)
if current then
  local their_namespace, their_token, their_holder = string.match(current, '^([^:]*):(%d+):(.*)$')
  if not their_namespace or their_namespace ~= namespace then
    return { 3, their_namespace or current }
  end
  if tonumber(their_token) > token or (tonumber(their_token) == token and their_holder ~= holder) then
    return { 2, tonumber(their_token) }
  end
end
local remembered = tonumber(redis.call('HGET', agreement, 'fence_token') or '') or 0
if remembered > token or (remembered == token and current ~= own) then
  return { 2, remembered }
end

local refusal = layout_refusal(ARGV[5], stream, at) -- raises where the stream's key holds something else
-- Harmless, and a write: under maxmemory a new leader can take over all the same.
redis.call('HDEL', agreement, '')
redis.call('SET', fence, own)
local before = redis.call('HMGET', agreement, 'policy', 'visibility_ms', 'max_deliveries', 'recovery')

-- Keeps the higher value for workers that go by it. Without earlier group settings, the value stays that workers have written which
-- joined before there were any (join_group.lua).
local function keep_former(name, was, is_open)
  local known = whole_number(was, nil)
  if known then
    local kept = is_open and whole_number(redis.call('HGET', agreement, name), 0) or 0
    redis.call('HSET', agreement, name, string.format('%.0f', math.max(known, kept)))
  end
end

if before[1] ~= ARGV[5] or before[2] ~= ARGV[6] or before[3] ~= ARGV[7] or before[4] ~= ARGV[8] then
  local known = redis.call('HMGET', agreement, 'version', 'former_until')
  redis.call('HSET', agreement, 'version', string.format('%.0f', math.max(at, whole_number(known[1], 0) + 1)))
  if whole_number(before[2], math.huge) > tonumber(ARGV[6]) or whole_number(before[3], math.huge) > tonumber(ARGV[7]) then
    local is_open = whole_number(known[2], 0) > at
    keep_former('former_visibility_ms', before[2], is_open)
    keep_former('former_max_deliveries', before[3], is_open)
    redis.call('HSET', agreement, 'former_until', string.format('%.0f', at + FORMER_MS))
  end
end
redis.call('HSET', agreement, 'fence_token', ARGV[2], 'policy', ARGV[5], 'visibility_ms', ARGV[6],
  'max_deliveries', ARGV[7], 'recovery', ARGV[8], 'served_until', string.format('%.0f', at + tonumber(ARGV[9])),
  'serves_for', ARGV[9])
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
local created = ARGV[10] == '1' and create_again(redis.call('HGET', agreement, 'last_id')) or ''
if ARGV[5] == 'retry-stream' then
  redis.pcall('XGROUP', 'CREATE', retry, group, '0', 'MKSTREAM')
end
return { 1, refusal or '', before[1] or '', before[2] or '', before[3] or '',
  before[4] or '', created }
