-- pending -> reported: deliveries that Redis lost because a third party deleted their consumer, or destroyed the group.
--
-- The script restores no delivery, because it may have been acknowledged. An operator decides (`reaper groups requeue`).
-- The caller leaves out entries that the journal names as settled. The script leaves out entries that are pending again, entries whose
-- payload is gone, and entries behind the group's position, because the group delivers those again.
--
-- KEYS[1] to KEYS[8] as in keys.lua (KEYS[1] is the stream in which the deliveries were pending)
-- KEYS[9] lease  {orders}:lease:billing  string
-- ARGV[1] group  ARGV[2] journal's MAXLEN  ARGV[3] lease of the caller  ARGV[4] token
-- ARGV[5] consumer that held the deliveries  ARGV[6] '1' = they were certainly not acknowledged ('0' = in doubt)
-- ARGV[7…] entry IDs
--
-- Returns {'ok', ID of a lost entry…} or {'fenced', lease found}. Raises NOGROUP where the group is gone.
-- Fence: the whole value is compared.

--- @keys
--- @prelude

local holder, token, consumer, certain = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local first = 7

local may, found = may_serve(holder, KEYS[9])
if not may then
  return { 'fenced', found }
end
open_for_writing(source, group)
local position = group_position(source, group)
if not position then -- else every entry would seem to be delivered
  return redis.error_reply("NOGROUP No such consumer group '" .. group .. "' for key '" .. source .. "'")
end

local reply = { 'ok' }
for i = first, #ARGV do
  local entry_id = ARGV[i]
  local entry = entry_of(entry_id)
  if entry and not is_after(entry_id, position) and not pending_row(entry_id) then
    local job = open_job(entry_id, entry[2])
    reply[#reply + 1] = entry_id
    write_event({ 'event', 'lost_delivery', 'group', group, 'mode', 'reaper', 'token', token, 'entry', entry_id, 'job', job.id,
      'source', source == retry and 'retry' or 'stream', 'consumer', consumer, 'generation', job.generation,
      'enqueued_ms', job.first_ms, 'certain', certain })
  end
end
if certain == '1' and #reply > 1 then
  redis.call('HINCRBY', settings, 'lost_delivery', #reply - 1)
  redis.call('HSET', settings, 'lost_delivery_ms', digits(at))
end
return reply
