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
--
-- Returns {code, detail, what was agreed before: policy, visibility_ms, max_deliveries, recovery}:
--   1 installed, detail = why the policy cannot work here ('' | several_groups | explicit_ids)
--   2 a token at least as high stands there: detail = that token; raise the counter and start a new term
--   3 another namespace serves this group: detail = its name
-- Fence: token compared with the fence and with the copy of it in the agreement (an evicted fence lets nobody back in).

--- @prelude

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

local at = now_ms()
local refusal = layout_refusal(ARGV[5], stream, at) -- raises where the stream's key holds something else
-- Harmless, and a write: under maxmemory a new leader can take over all the same.
redis.call('HDEL', agreement, '')
redis.call('SET', fence, own)
local before = redis.call('HMGET', agreement, 'policy', 'visibility_ms', 'max_deliveries', 'recovery')
redis.call('HSET', agreement, 'fence_token', ARGV[2], 'policy', ARGV[5], 'visibility_ms', ARGV[6],
  'max_deliveries', ARGV[7], 'recovery', ARGV[8], 'served_until', string.format('%.0f', at + tonumber(ARGV[9])))
redis.call('HDEL', agreement, 'mismatch')
if ARGV[5] == 'retry-stream' then
  redis.pcall('XGROUP', 'CREATE', retry, group, '0', 'MKSTREAM')
end
return { 1, refusal or '', before[1] or '', before[2] or '', before[3] or '',
  before[4] or '' }
