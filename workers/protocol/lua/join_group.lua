-- A worker joins a group: creates the group (and the retry stream's) where it is missing, and learns what the
-- group agreed on. A value that nobody has set yet is set to ours, where we have one; a different one is recorded.
--
-- Who recovers: a leader that takes the group over writes `reaper`, and says for how long it is sure to serve. Embedded
-- workers stand by for so long; the first to join after that (or where no leader ever came) writes `embedded`, and removes
-- the fence, so that whatever the leader that is gone may still write here is refused.
--
-- KEYS[1] stream     orders                   stream
-- KEYS[2] retry      {orders}:retry:billing   stream
-- KEYS[3] agreement  {orders}:group:billing   hash
-- KEYS[4] fence      {orders}:fence:billing   string
-- ARGV[1] group
-- ARGV[2] start ID of a group that has to be created ('0' = everything that is there), where none is remembered
-- ARGV[3] policy ('' = follow the group)  ARGV[4] visibility timeout in ms ('')  ARGV[5] max_deliveries ('')
-- ARGV[6] recovery mode  ARGV[7] worker's name, for the record of a mismatch
--
-- Returns {policy, visibility_ms, max_deliveries, recovery ('' where not agreed), retry stream is to be read (1|0),
-- start ID of the group if it was created now ('' if not), groups of the stream, server time in ms, mismatch (''),
-- ms for which a leader is sure to serve the group (0 = none is), embedded recovery begins with us (1|0)}.
-- Raises WRONGTYPE where the stream's key holds something else.
-- Fence: none; it only creates what is missing, and removes the fence of a leader that has gone.

--- @prelude

local stream, retry, agreement, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, worker = ARGV[1], ARGV[7]

-- Also the harmless first write: creating and agreeing then work under maxmemory too.
open_for_writing(stream, group)

local function create_group(key, id)
  local reply = redis.pcall('XGROUP', 'CREATE', key, group, id, 'MKSTREAM')
  if type(reply) == 'table' and reply.err then
    return false, not string.find(reply.err, 'BUSYGROUP') and reply or nil
  end
  return true
end

-- A group that was destroyed goes on where it was last known to be, if the stream is still the same one.
local function start_id()
  local remembered = redis.call('HGET', agreement, 'last_id')
  if not remembered or redis.call('EXISTS', stream) == 0 then
    return ARGV[2]
  end
  local last_id = info_field(redis.call('XINFO', 'STREAM', stream), 'last-generated-id')
  return entry_ms(last_id) < entry_ms(remembered) and ARGV[2] or remembered
end

local start = start_id()
local created, failed = create_group(stream, start)
if failed then
  return failed
end

local at = now_ms()
local served_until = whole_number(redis.call('HGET', agreement, 'served_until'), 0)
local is_served = redis.call('HGET', agreement, 'recovery') == 'reaper' and served_until > at
local begins = 0
if ARGV[6] == 'embedded' and not is_served and redis.call('HGET', agreement, 'recovery') ~= 'embedded' then
  redis.call('DEL', fence)
  redis.call('HSET', agreement, 'recovery', 'embedded')
  begins = 1
end

local names = { 'policy', 'visibility_ms', 'max_deliveries', 'recovery' }
local agreed, differing = {}, {}
for i, name in ipairs(names) do
  local ours = ARGV[i + 2]
  if ours ~= '' then
    redis.call('HSETNX', agreement, name, ours)
  end
  agreed[i] = redis.call('HGET', agreement, name) or ''
  if ours ~= '' and agreed[i] ~= ours then
    differing[#differing + 1] = name .. ' ' .. agreed[i] .. ' is agreed, ' .. ours .. ' is set'
  end
end

local mismatch = table.concat(differing, '; ')
local prefix = 'worker ' .. worker .. ': '
if mismatch ~= '' then
  redis.call('HSET', agreement, 'mismatch', prefix .. mismatch)
elseif string.sub(redis.call('HGET', agreement, 'mismatch') or '', 1, #prefix) == prefix then
  redis.call('HDEL', agreement, 'mismatch')
end

local read_retry = agreed[1] == 'retry-stream' or redis.call('EXISTS', retry) == 1
if read_retry then
  local _, retry_failed = create_group(retry, '0')
  if retry_failed then
    return retry_failed
  end
end

return { agreed[1], agreed[2], agreed[3], agreed[4], read_retry and 1 or 0, created and start or '',
  #redis.call('XINFO', 'GROUPS', stream), at, mismatch, is_served and served_until - at or 0, begins }
