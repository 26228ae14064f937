-- Maintenance of a group, now and then, by the holder of the lease (embedded: by any worker): remembers the group's position, deletes
-- silent consumers without pending entries, forgets registrations of workers that have left, and notices deletions.
--
-- A worker that leaves removes its registration with its consumer, and so does this script. So a registration that has ended and whose
-- consumer is missing means that a third party deleted the consumer. This is reported once, and the registration is removed.
--
-- A consumer of ours, the marker, identifies the group. Each call creates it again, so that a script that deletes silent consumers never
-- finds it. If it was there (`marked`) and is missing, a third party has destroyed the group, or deleted all consumers.
--
-- KEYS[1] to KEYS[8] as in keys.lua (KEYS[1] is the stream)
-- KEYS[9] lease  {orders}:lease:billing  string
-- ARGV[1] group  ARGV[2] journal's MAXLEN  ARGV[3] the caller's lease, its whole value ('' = embedded)  ARGV[4] token
-- ARGV[5] silence in ms after which a consumer goes ('' = never)
--
-- Returns {'ok', names of the consumers deleted, names of workers' consumers that a third party deleted, how often the marker was missing
-- in all, for how long jobs have been ready while no consumer read and none had a delivery (ms, 0 = not at all)} or {'fenced', lease found}.
-- Fence: the whole value is compared, or recovery is `embedded`. A consumer with pending entries is never deleted: they would go with it.

--- @keys
--- @prelude

local holder, token, silence = ARGV[3], ARGV[4], tonumber(ARGV[5])
local MARKER = 'marked-by-reaper' -- it has no deliveries
local MOST = 1000 -- consumers that are deleted, or reported, in one call; the others follow with the next
local REGISTRATION_KEPT_MS = 600000 -- for this time `reaper status` shows that a worker has left

local in_force = read_settings()
local may, lease = may_serve(holder, KEYS[9], in_force and in_force.recovery)
if not may then
  return { 'fenced', lease }
end
open_for_writing(stream, group)

local position = group_position(stream, group)
if position then
  redis.call('HSET', settings, 'last_id', position)
end

-- While recovery waits, a step of the clock may be all that made consumers look silent, and ended registrations.
local waits = recovery_waits_ms(in_force) > 0
local deleted, held_by, marker = {}, {}, nil
local quiet_ms, in_flight = math.huge, 0
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local name, pending, idle = info_field(info, 'name'), info_field(info, 'pending'), info_field(info, 'idle')
  if name == MARKER then
    marker = pending
  else
    quiet_ms, in_flight = math.min(quiet_ms, idle), in_flight + pending
    if silence and not waits and pending == 0 and idle > silence and #deleted < MOST then
      redis.call('XGROUP', 'DELCONSUMER', stream, group, name)
      redis.call('HDEL', settings, 'registration:' .. name, 'settled:' .. name)
      deleted[#deleted + 1] = name
    else
      held_by[name] = pending
    end
  end
end

local missing = {}
each_registration(settings, function(consumer, until_ms)
  local held, ended_ms = held_by[consumer], until_ms and not waits and at - until_ms or -1
  if not until_ms or held == 0 and ended_ms >= REGISTRATION_KEPT_MS then
    redis.call('HDEL', settings, 'registration:' .. consumer)
  elseif not held and ended_ms >= 0 and #missing < MOST then
    redis.call('HDEL', settings, 'registration:' .. consumer)
    missing[#missing + 1] = consumer
    write_event({ 'event', 'lost_consumer', 'group', group, 'mode', holder == '' and 'embedded' or 'reaper', 'token', token,
      'consumer', consumer, 'until_ms', digits(until_ms) })
  end
end)

if position and not marker and redis.call('HGET', settings, 'marked') == '1' then
  redis.call('HINCRBY', settings, 'groups_lost', 1)
  redis.call('HSET', settings, 'groups_lost_ms', digits(at))
end
local is_marked = (marker or 0) > 0 -- a third party has given it a delivery, so it stays
if position and not is_marked then
  redis.pcall('XGROUP', 'DELCONSUMER', stream, group, MARKER)
  is_marked = type(redis.pcall('XGROUP', 'CREATECONSUMER', stream, group, MARKER)) == 'number'
end
-- If the marker may not be created, or there is no memory, its absence has no meaning.
redis.call('HSET', settings, 'marked', is_marked and '1' or '0')

local first = position and in_flight == 0 and not waits and entries_behind(stream, position, 1)[1]
local unread_ms = first and math.max(0, math.min(quiet_ms, at - entry_ms(first[1]))) or 0
return { 'ok', deleted, missing, whole_number(redis.call('HGET', settings, 'groups_lost'), 0), unread_ms }
