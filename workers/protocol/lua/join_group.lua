-- A worker joins a group: creates the group (and the retry stream's) where it is missing, and learns what the
-- group agreed on. A value that nobody has set yet is set to ours, where we have one; a different one is recorded.
--
-- Who recovers: a replica that takes the lease writes `reaper`, and says for how long it is sure to serve. Embedded
-- workers stand by for so long; the first to join after that (or where no replica ever came) writes `embedded`, and removes
-- the lease, so that whatever the replica that is gone may still write here is refused. It also writes its policy, if it has one.
--
-- A worker that names itself registers: it writes until when it is sure to live, and how its settings differ. Settings that the group
-- does not have yet, or has lost, are written by the first worker that registers: those that it knows, or assumes.
--
-- KEYS[1] stream     orders                   stream
-- KEYS[2] retry      {orders}:retry:billing   stream
-- KEYS[3] agreement  {orders}:group:billing   hash
-- KEYS[4] lease      {orders}:lease:billing   string
-- ARGV[1] group
-- ARGV[2] start ID of a group that has to be created ('0' = everything that is there), where none is remembered
-- ARGV[3] policy ('' = follow the group)  ARGV[4] visibility timeout in ms ('')  ARGV[5] max_deliveries ('')
-- ARGV[6] recovery mode (reaper | embedded)  ARGV[7] worker's name, for the record of a mismatch
-- ARGV[8] our consumer ('' or left out, and all that follow: we do not register)  ARGV[9] for how long a registration lasts, in ms
-- ARGV[10] version of the agreement that we have joined (0 = none, or one without a visibility timeout)
-- ARGV[11] '1' = we begin, and hold nothing
-- ARGV[12] policy, ARGV[13] visibility timeout in ms and ARGV[14] max_deliveries that we go by where nothing is agreed on
--
-- Returns {policy, visibility_ms, max_deliveries, recovery ('' where not agreed), retry stream is to be read (1|0),
-- start ID of the group if it was created now ('' if not), groups of the stream, server time in ms, mismatch (''),
-- ms for which a replica is sure to serve the group (0 = none is), recovery by workers begins with us (1|0), version of the
-- agreement (0 = nothing is agreed on)}.
-- Raises WRONGTYPE where the stream's key holds something else, and, of a worker that begins
-- (ARGV[11]), what Redis says of a command that extensions need and may not have.
-- Fence: none; it only creates what is missing, and removes the lease of a replica that has gone.

--- @prelude
--- @heartbeat

local stream, retry, agreement, lease = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, worker = ARGV[1], ARGV[7]
local consumer, registered_ms, joined_version = ARGV[8] or '', ARGV[9], whole_number(ARGV[10], 0)

-- Also the harmless first write: creating and agreeing then work under maxmemory too.
open_for_writing(stream, group)

local function create_group(key, id)
  local reply = redis.pcall('XGROUP', 'CREATE', key, group, id, 'MKSTREAM')
  if type(reply) == 'table' and reply.err then
    return false, not string.find(reply.err, 'BUSYGROUP') and reply or nil
  end
  return true
end

-- A group that was destroyed goes on where it was last known to be, if the stream is still the same one (as in lease_take.lua).
local function start_id()
  local remembered = redis.call('HGET', agreement, 'last_id')
  if not remembered or redis.call('EXISTS', stream) == 0 then
    return ARGV[2]
  end
  local last_id = info_field(redis.call('XINFO', 'STREAM', stream), 'last-generated-id')
  return is_after(remembered, last_id) and ARGV[2] or remembered
end

local start = start_id()
local created, failed = create_group(stream, start)
if failed then
  return failed
end

if consumer ~= '' and ARGV[11] == '1' then -- before it reads anything, a worker has to know that it can send heartbeats
  probe_heartbeat(stream, group)
end

local served_until = whole_number(redis.call('HGET', agreement, 'served_until'), 0)
local serves_for = whole_number(redis.call('HGET', agreement, 'serves_for'), nil)
if serves_for and served_until > at + serves_for then -- the server's clock was set back: it would lock us out for as long
  served_until = at + serves_for
  redis.call('HSET', agreement, 'served_until', string.format('%.0f', served_until))
end
local is_served = redis.call('HGET', agreement, 'recovery') == 'reaper' and served_until > at
local begins = 0
local wishes = { ARGV[3], ARGV[4], ARGV[5], ARGV[6] }
if wishes[4] == 'embedded' and not is_served and redis.call('HGET', agreement, 'recovery') ~= 'embedded' then
  redis.call('DEL', lease)
  redis.call('HSET', agreement, 'recovery', 'embedded')
  if wishes[1] ~= '' then
    redis.call('HSET', agreement, 'policy', wishes[1])
  end
  begins = 1
end

-- What is agreed on; what nobody has set is set.
local names = { 'policy', 'visibility_ms', 'max_deliveries', 'recovery' }
local version = whole_number(redis.call('HGET', agreement, 'version'), 0)
local knew = { ARGV[12] or '', ARGV[13] or '', ARGV[14] or '' }
local was_lost = joined_version > 0 and not redis.call('HGET', agreement, 'visibility_ms')
local agreed, differing, is_new = {}, {}, begins == 1
for i, name in ipairs(names) do
  local ours = wishes[i]
  local wish = was_lost and knew[i] or ours
  if wish == '' and consumer ~= '' then
    wish = knew[i] or '' -- the scripts that settle need settings; a replica changes them as any others
  end
  if wish ~= '' and redis.call('HSETNX', agreement, name, wish) == 1 then
    is_new = true
  end
  agreed[i] = redis.call('HGET', agreement, name) or ''
  if ours ~= '' and agreed[i] ~= ours then
    differing[#differing + 1] = name .. ' ' .. agreed[i] .. ' is agreed, ' .. ARGV[i + 2] .. ' is set'
  end
end
if is_new then
  version = math.max(at, version + 1)
  redis.call('HSET', agreement, 'version', string.format('%.0f', version))
end

local mismatch = table.concat(differing, '; ')
if consumer ~= '' then
  -- Before 7.2 a read that finds nothing makes none: a registration whose consumer is missing is to say that somebody deleted it.
  redis.pcall('XGROUP', 'CREATECONSUMER', stream, group, consumer)
  redis.call('HSET', agreement, 'member:' .. consumer, string.format('%.0f,', at + tonumber(registered_ms))
    .. (mismatch ~= '' and 'worker ' .. worker .. ': ' .. mismatch or ''))
end

local read_retry = agreed[1] == 'retry-stream' or redis.call('EXISTS', retry) == 1
if read_retry then
  local _, retry_failed = create_group(retry, '0')
  if retry_failed then
    return retry_failed
  end
end

return { agreed[1], agreed[2], agreed[3], agreed[4], read_retry and 1 or 0, created and start or '',
  #redis.call('XINFO', 'GROUPS', stream), at, mismatch, is_served and served_until - at or 0, begins, version }
