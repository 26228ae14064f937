-- A worker joins a group: creates the group (and the retry stream's) if it is missing, registers, and reads the group settings.
-- Settings that the group does not have, or has lost, are written. One that differs from the worker's is recorded.
--
-- The recovery mode: a replica that takes the lease writes `reaper`. Embedded workers stand by while there is a lease. The first one to join
-- without a lease writes `embedded`, and its policy, if it has one.
--
-- KEYS[1] stream    orders                   stream
-- KEYS[2] retry     {orders}:retry:billing   stream
-- KEYS[3] settings  {orders}:group:billing   hash
-- KEYS[4] lease     {orders}:lease:billing   string
-- ARGV[1] group  ARGV[2] start ID of a group that is created and has no known position ('0' = the first entry)
-- ARGV[3] policy, ARGV[4] visibility timeout in ms, ARGV[5] max_deliveries, ARGV[6] recovery mode that are set ('' = follow the group)
-- ARGV[7] policy, ARGV[8] visibility timeout in ms, ARGV[9] max_deliveries, ARGV[10] recovery mode that the worker goes by otherwise
-- ARGV[11] worker's name  ARGV[12] its consumer  ARGV[13] for how long a registration lasts, in ms
-- ARGV[14] '1' = the worker begins, and has no deliveries
--
-- Returns {policy, visibility_ms, max_deliveries, recovery, retry stream is to be read (1|0), start ID of the group if it was created now
-- ('' if not), server time in ms, how the worker's settings differ (''), of an embedded worker: ms until the
-- lease may be free (0 = it is), and whether recovery by workers begins with this call (1|0)}.
-- Raises WRONGTYPE if the stream's key is of another type. A worker that begins also gets the error of a command that heartbeats need and
-- that its user may not run.
-- Fence: none; it only creates what is missing.

local stream, retry, settings, lease, group = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]

--- @prelude

local worker, consumer, registered_ms = ARGV[11], ARGV[12], tonumber(ARGV[13])

open_for_writing(stream, group)

-- Returns whether the group was created, and why it could not be.
local function create_group(key, id)
  local reply = redis.pcall('XGROUP', 'CREATE', key, group, id, 'MKSTREAM')
  if type(reply) == 'table' and reply.err then
    return false, not string.find(reply.err, 'BUSYGROUP') and reply or nil
  end
  return true
end

-- Returns the last known position of a destroyed group. A stream that was created again, and a new group, have none.
local function known_position()
  local last_id = redis.call('HGET', settings, 'last_id') or ''
  if string.match(last_id, '^%d+%-%d+$') and redis.call('EXISTS', stream) == 1
      and not is_after(last_id, info_field(redis.call('XINFO', 'STREAM', stream), 'last-generated-id')) then
    return last_id
  end
end

local start = known_position() or ARGV[2]
local created, failed = create_group(stream, start)
if failed then
  return failed
end
if ARGV[14] == '1' then -- before it reads anything, a worker has to know that it can send heartbeats
  probe_heartbeat(stream)
end

local is_embedded = ARGV[6] == 'embedded'
local holder = is_embedded and redis.call('GET', lease)
local ttl = tonumber(string.match(holder or '', '@(%d+)$') or '')
-- Other replicas take a lease that ends. Embedded workers give them its TTL. (Redis's own time to live may be wrong by a step of its clock.)
local served_ms = holder and math.max(1, math.min(redis.call('PTTL', lease), ttl or math.huge)) + (ttl or 0) or 0
local begins = is_embedded and not holder and redis.call('HGET', settings, 'recovery') ~= 'embedded'
if begins then
  redis.call('HSET', settings, 'recovery', 'embedded')
  if ARGV[3] ~= '' then
    redis.call('HSET', settings, 'policy', ARGV[3])
  end
end

local in_force, differing = {}, {}
for i, name in ipairs({ 'policy', 'visibility_ms', 'max_deliveries', 'recovery' }) do
  local ours = ARGV[i + 2]
  redis.call('HSETNX', settings, name, ARGV[i + 6])
  in_force[i] = redis.call('HGET', settings, name)
  if ours ~= '' and in_force[i] ~= ours then
    differing[#differing + 1] = name .. ' ' .. in_force[i] .. ' is in force, ' .. ours .. ' is set'
  end
end

local mismatch = table.concat(differing, '; ')
-- Before 7.2 a read without entries creates no consumer. A registration without a consumer must mean that a third party deleted it.
redis.pcall('XGROUP', 'CREATECONSUMER', stream, group, consumer)
redis.call('HSET', settings, 'registration:' .. consumer, digits(at + registered_ms) .. ','
  .. (mismatch ~= '' and 'worker ' .. worker .. ': ' .. mismatch or ''))

local read_retry = in_force[1] == 'retry-stream' or redis.call('EXISTS', retry) == 1
if read_retry then
  local _, retry_failed = create_group(retry, '0')
  if retry_failed then
    return retry_failed
  end
end
return { in_force[1], in_force[2], in_force[3], in_force[4], read_retry and 1 or 0, created and start or '',
  at, mismatch, served_ms, begins and 1 or 0 }
