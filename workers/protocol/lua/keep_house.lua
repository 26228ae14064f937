-- Maintenance of a group, now and then, by the holder of the lease (embedded: by any worker): remembers the group's position, deletes consumers that
-- hold nothing and were silent for long, forgets registrations of workers that have gone, and notices what somebody else has deleted.
--
-- A worker that leaves removes its registration with its consumer, and so does this script. So a registration that has ended and
-- whose consumer is missing means that somebody else deleted the consumer. This is reported once, and the registration is removed.
--
-- A group is recognized by a consumer of ours, the marker. It is made anew by each call, so that a script that deletes consumers which
-- were silent for long never meets it. If it was there (`marked`) and is missing, somebody has destroyed the group, or all consumers.
--
-- KEYS[1] stream     orders                   stream
-- KEYS[2] lease      {orders}:lease:billing   string
-- KEYS[3] agreement  {orders}:group:billing   hash
-- KEYS[4] journal    {orders}:journal         stream
-- ARGV[1] lease of the caller ('' = an embedded worker's, which has none)  ARGV[2] group  ARGV[3] silence in ms after which a consumer goes ('' = never)
-- ARGV[4] journal: '1' = write events  ARGV[5] journal's MAXLEN  ARGV[6] the caller's token
--
-- Returns {'ok', number of consumers deleted, was the marker missing (1|0), how often it was in all, for how long jobs have been ready
-- while no consumer read and none had a delivery (ms, 0 = not at all), names of the consumers deleted…, names of workers' consumers that
-- somebody else deleted…} or {'stale', lease found}.
-- Fence: the whole value is compared; without one, the group must have agreed on embedded recovery. A consumer with pending entries is never deleted: they would go with it.

local stream, lease, agreement, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local own, group, silence = ARGV[1], ARGV[2], tonumber(ARGV[3])
local maxlen, token = ARGV[4] == '1' and tonumber(ARGV[5]) or 0, ARGV[6]

--- @prelude
--- @heartbeat

local MARKER_CONSUMER = 'marked-by-reaper' -- it holds nothing
local MOST = 1000 -- consumers that are deleted, or reported, in one call; the others follow with the next
local REGISTRATION_KEPT_MS = 600000 -- so long it is shown that a worker has gone

local found = refused_by_lease(own, lease, agreement)
if found then
  return { 'stale', found }
end
redis.call('HDEL', agreement, '') -- harmless, and a write: what follows then works under maxmemory

local position = group_position(stream, group)
if position then
  redis.call('HSET', agreement, 'last_id', position)
end

-- While recovery waits, a step of the clock may be all that made consumers look silent, and ended registrations.
local waits = recovery_waits_ms(read_beat(agreement, at), at, 0) > 0
local deleted, held_by, marker = {}, {}, nil
local quiet_ms, in_flight = math.huge, 0
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local name, pending = info_field(info, 'name'), info_field(info, 'pending')
  local is_silent = silence and not waits and pending == 0 and info_field(info, 'idle') > silence
  if name ~= MARKER_CONSUMER then
    quiet_ms, in_flight = math.min(quiet_ms, info_field(info, 'idle')), in_flight + pending
  end
  if name == MARKER_CONSUMER then
    marker = pending
  elseif is_silent and #deleted < MOST then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, name)
    redis.call('HDEL', agreement, 'member:' .. name, 'settled:' .. name)
    deleted[#deleted + 1] = name
  else
    held_by[name] = pending
  end
end

local missing = {}
each_registration(agreement, function(field, until_ms)
  local consumer = string.sub(field, 8)
  local held, ended_ms = held_by[consumer], until_ms and not waits and at - until_ms or -1
  if not until_ms or (held == 0 and ended_ms >= REGISTRATION_KEPT_MS) then
    redis.call('HDEL', agreement, field)
  elseif not held and ended_ms >= 0 and #missing < MOST then
    redis.call('HDEL', agreement, field)
    missing[#missing + 1] = consumer
    write_event({ 'event', 'lost_consumer', 'group', group, 'mode', own == '' and 'embedded' or 'reaper', 'token', token,
      'consumer', consumer, 'until_ms', digits(until_ms) })
  end
end)

local is_missing = position and not marker and redis.call('HGET', agreement, 'marked') == '1'
-- Where the marker may not be made, or there is no memory, its absence means nothing.
local is_marked = (marker or 0) > 0
if position and not is_marked then
  redis.pcall('XGROUP', 'DELCONSUMER', stream, group, MARKER_CONSUMER)
  is_marked = type(redis.pcall('XGROUP', 'CREATECONSUMER', stream, group, MARKER_CONSUMER)) == 'number'
end
if is_marked then
  redis.call('HSET', agreement, 'marked', '1')
else
  redis.call('HDEL', agreement, 'marked')
end
if is_missing then
  redis.call('HINCRBY', agreement, 'groups_lost', 1)
  redis.call('HSET', agreement, 'groups_lost_ms', digits(at))
end
local first = position and in_flight == 0 and not waits and entries_behind(stream, position, 1)[1]
local unread_ms = first and math.max(0, math.min(quiet_ms, at - entry_ms(first[1]))) or 0
local reply = { 'ok', #deleted, is_missing and 1 or 0, whole_number(redis.call('HGET', agreement, 'groups_lost'), 0), unread_ms }
for _, names in ipairs({ deleted, missing }) do
  for _, name in ipairs(names) do
    reply[#reply + 1] = name
  end
end
return reply
