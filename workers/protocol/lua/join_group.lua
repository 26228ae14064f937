-- A worker joins a group: creates the group (and the retry stream's) where it is missing, and learns what the
-- group agreed on. A value that nobody has set yet is set to ours, where we have one.
--
-- KEYS[1] stream     orders                   stream
-- KEYS[2] retry      {orders}:retry:billing   stream
-- KEYS[3] agreement  {orders}:group:billing   hash
-- ARGV[1] group
-- ARGV[2] start ID of a group that has to be created ('0' = everything that is there)
-- ARGV[3] policy ('' = follow the group)  ARGV[4] visibility timeout in ms ('')  ARGV[5] max_deliveries ('')
-- ARGV[6] recovery mode
--
-- Returns {policy, visibility_ms, max_deliveries, recovery, retry stream is to be read (1|0)}; '' where not agreed.
-- Raises WRONGTYPE where the stream's key holds something else.
-- Fence: none; it only creates what is missing.

local stream, retry, agreement = KEYS[1], KEYS[2], KEYS[3]
local group, start = ARGV[1], ARGV[2]

local function create_group(key, id)
  local reply = redis.pcall('XGROUP', 'CREATE', key, group, id, 'MKSTREAM')
  if type(reply) == 'table' and reply.err and not string.find(reply.err, 'BUSYGROUP') then
    return reply
  end
end

local failed = create_group(stream, start)
if failed then
  return failed
end
-- Harmless, and a write: setting the agreement then works under maxmemory too.
redis.call('XACK', stream, group, '0-0')

local names = { 'policy', 'visibility_ms', 'max_deliveries', 'recovery' }
for i, name in ipairs(names) do
  if ARGV[i + 2] ~= '' then
    redis.call('HSETNX', agreement, name, ARGV[i + 2])
  end
end
local agreed = redis.call('HMGET', agreement, unpack(names))
for i = 1, #names do
  agreed[i] = agreed[i] or ''
end

local read_retry = agreed[1] == 'retry-stream' or redis.call('EXISTS', retry) == 1
if read_retry then
  failed = create_group(retry, '0')
  if failed then
    return failed
  end
end
agreed[5] = read_retry and 1 or 0
return agreed
