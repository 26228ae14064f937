-- pending -> pending, extended: a worker sends a heartbeat for many deliveries of one source.
--
-- KEYS[1] to KEYS[8] as in keys.lua
-- ARGV[1] group  ARGV[2] journal's MAXLEN (not used)  ARGV[3] consumer
-- ARGV[4…] entry ID, times delivered, state of its handler, in turns; none: the beat alone. '0' = it waits, '1' = it is about to begin,
-- '2' = it runs. Of a quarantined job, '1' says that it has arrived, and '2' comes after min(1 s, a third of the visibility timeout).
--
-- Returns a result for each: 1 extended, 0 rejected (it is not ours any more), 2 payload deleted (7.0 would drop it from the pending entries
-- list without a report), 3 vanished: a third party deleted the consumer or the group, so the delivery has no owner (hold.lua),
-- 4 a read may have taken it by mistake just now, because the server's clock was set back (return_taken.lua): ask again.
-- Raises NOGROUP, NOSETTINGS.
-- Fence: consumer and times delivered.

--- @keys
--- @prelude

local consumer = ARGV[3]
local first = 4
local in_force = read_settings()
if not in_force then
  return redis.error_reply(NO_SETTINGS)
end
open_for_writing(source, group)
-- Our scripts delete the entry of each delivery that they end there. So an entry that is there and not pending was dropped.
local is_certain = source == retry or in_force.policy == 'stream' and in_force.recovery == 'reaper'

local ids = {}
for i = first, #ARGV, 3 do
  ids[#ids + 1] = ARGV[i]
end
-- The beat needs this command, too. A command of its own could be denied, so that this call fails while the beat of others goes on.
local quarantined = ids[1] and redis.call('HMGET', quarantine, unpack(ids)) or {}

local function extend(entry_id, value, times, state)
  local row, is_there = pending_row(entry_id), entry_of(entry_id) ~= nil
  if not row then
    if not (is_there and is_certain) or is_after(entry_id, group_position(source, group) or entry_id) then
      return 0 -- an entry behind the position, as after a failover that lost a read, is delivered again
    end
    return 3
  elseif in_force.policy == 'in-place' and row[2] ~= consumer and row[2] ~= RETURNED and row[4] == times + 1 and not is_given_back(row) then
    return 4
  elseif row[2] ~= consumer and row[2] ~= RETURNED or row[4] ~= times or is_given_back(row) then
    return 0
  elseif not is_there then
    return 2
  end
  redis.call('XCLAIM', source, group, consumer, 0, entry_id, 'JUSTID')
  local released = state ~= '0' and read_released(value or nil)
  if released then
    released.arrived, released.lives = times, state == '2'
    write_released(entry_id, released)
  end
  return 1
end

local reply = {}
for n, entry_id in ipairs(ids) do
  local i = first + 3 * (n - 1)
  reply[n] = extend(entry_id, quarantined[n], tonumber(ARGV[i + 1]), ARGV[i + 2])
end
probe_heartbeat(source)
note_beat(in_force)
return reply
