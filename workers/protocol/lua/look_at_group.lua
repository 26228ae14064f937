-- Reads only: what the gauges of a group show. In the server, because the payload of the first job would travel otherwise.
--
-- KEYS[1] stream           orders                        stream
-- KEYS[2] retry            {orders}:retry:billing        stream
-- KEYS[3] schedule         {orders}:scheduled:billing    sorted set: jobs by the time they are due, and quarantined jobs
-- KEYS[4] stream_schedule  {orders}:scheduled            sorted set
-- KEYS[5] quarantine       {orders}:quarantine:billing     hash
-- KEYS[6] dead             {orders}:dead:billing         stream
-- KEYS[7] settings        {orders}:group:billing        hash
-- ARGV[1] group
--
-- Returns {in flight, age of the oldest ready job in ms, idle time of the oldest delivery in ms, scheduled, quarantined and released jobs,
-- dead letters, 1 where an operator has paused recovery, else 0, ms for which recovery waits (heartbeat.lua)}; ages are 0 where there is none. What is not there, or is something foreign, reads as empty.
-- Fence: none; it writes nothing.

--- @prelude
--- @heartbeat

local stream, retry, schedule, stream_schedule, quarantine, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local settings = KEYS[7]
local group = ARGV[1]
local LOOKED_AT = 20 -- deliveries, for the oldest that a worker has
local MOST_READY = 10000
local in_place = redis.pcall('HGET', settings, 'policy') == 'in-place'

local function readable(reply, default)
  if type(reply) ~= 'table' or not reply.err then
    return reply
  end
  for _, expected in ipairs({ 'WRONGTYPE', 'NOGROUP', 'no such key' }) do
    if string.find(reply.err, expected, 1, true) then
      return default
    end
  end
  error(reply.err)
end

local in_flight, ready_ms, pending_ms = 0, 0, 0
local function look_at(source)
  for _, info in ipairs(readable(redis.pcall('XINFO', 'GROUPS', source), {})) do
    if info_field(info, 'name') == group then
      local first = entries_behind(source, info_field(info, 'last-delivered-id'), 1)[1]
      ready_ms = math.max(ready_ms, first and math.max(1, at - entry_ms(first[1])) or 0)
      for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', source, group)) do
        in_flight = in_flight + info_field(consumer, 'pending')
      end
      for _, row in ipairs(in_place and redis.call('XPENDING', source, group, 'IDLE', READY_MS, '-', '+', MOST_READY) or {}) do
        in_flight, ready_ms = in_flight - (row[2] ~= '' and 1 or 0), math.max(1, ready_ms) -- since when it is ready is not known
      end
      for _, row in ipairs(redis.call('XPENDING', source, group, '-', '+', LOOKED_AT)) do
        if row[2] ~= '' and row[3] < READY_MS then
          pending_ms = math.max(pending_ms, row[3])
          break
        end
      end
    end
  end
end

look_at(stream)
look_at(retry)
local quarantined = readable(redis.pcall('ZCOUNT', schedule, digits(QUARANTINE_SCORE), '+inf'), 0)
local scheduled = readable(redis.pcall('ZCARD', schedule), 0) - quarantined + readable(redis.pcall('ZCARD', stream_schedule), 0)
local released = readable(redis.pcall('HLEN', quarantine), 0)
local dead_letters = readable(redis.pcall('XLEN', dead), 0)
local paused = readable(redis.pcall('HGET', settings, 'paused'), false) == '1' and 1 or 0
local is_known, waits_ms = pcall(function() return recovery_waits_ms(read_beat(settings, at), at, 0) end)
return { in_flight, ready_ms, pending_ms, scheduled, quarantined + released, dead_letters, paused, is_known and waits_ms or 0 }
