-- Reads the values of the gauges of a group. A script, because otherwise the payload of the first job would be transferred.
--
-- KEYS[1] stream           orders                        stream
-- KEYS[2] retry            {orders}:retry:billing        stream
-- KEYS[3] schedule         {orders}:scheduled:billing    sorted set: jobs by the time they are due, and quarantined jobs
-- KEYS[4] stream_schedule  {orders}:scheduled            sorted set
-- KEYS[5] quarantine       {orders}:quarantine:billing   hash
-- KEYS[6] dead             {orders}:dead:billing         stream
-- KEYS[7] settings         {orders}:group:billing        hash
-- ARGV[1] group
--
-- Returns {in flight, age of the oldest ready job in ms, idle time of the oldest delivery in ms, scheduled, quarantined and released jobs,
-- dead letters, 1 if an operator has paused recovery, else 0, ms for which recovery waits (9_beat.lua)}. An age is 0 if there is none.
-- A key that is missing reads as empty.
-- Fence: none; it writes nothing.

local stream, retry, schedule, stream_schedule, quarantine, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local settings, group = KEYS[7], ARGV[1]

--- @prelude

local LOOKED_AT = 20 -- deliveries, for the oldest that a worker has
local MOST_READY = 10000
local in_force = read_settings() or {}

local in_flight, ready_ms, pending_ms = 0, 0, 0
local function look_at(source)
  local position = group_position(source, group)
  if not position then
    return
  end
  local first = entries_behind(source, position, 1)[1]
  ready_ms = math.max(ready_ms, first and math.max(1, at - entry_ms(first[1])) or 0)
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', source, group)) do
    in_flight = in_flight + info_field(consumer, 'pending')
  end
  local in_place = in_force.policy == 'in-place'
  for _, row in ipairs(in_place and redis.call('XPENDING', source, group, 'IDLE', READY_MS, '-', '+', MOST_READY) or {}) do
    in_flight, ready_ms = in_flight - (row[2] ~= '' and 1 or 0), math.max(1, ready_ms) -- since when it is ready is not known
  end
  for _, row in ipairs(redis.call('XPENDING', source, group, '-', '+', LOOKED_AT)) do
    if not is_given_back(row) then
      pending_ms = math.max(pending_ms, row[3])
      break
    end
  end
end

look_at(stream)
look_at(retry)
local quarantined = redis.call('ZCOUNT', schedule, digits(QUARANTINE_SCORE), '+inf')
local scheduled = redis.call('ZCARD', schedule) - quarantined + redis.call('ZCARD', stream_schedule)
return { in_flight, ready_ms, pending_ms, scheduled, quarantined + redis.call('HLEN', quarantine), redis.call('XLEN', dead),
  in_force.paused and 1 or 0, recovery_waits_ms(in_force.policy and in_force) }
