-- pending -> reported: deliveries that Redis forgot because somebody deleted their consumer, or destroyed the group.
--
-- Nothing is restored here: whether a delivery was acknowledged or dropped may be in doubt, so a person decides (`reaper groups requeue`).
-- The caller leaves out entries that the journal names as settled. The script leaves out entries that are pending again, entries whose
-- payload is gone, and entries behind the group's position, because the group delivers those again.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream in which the deliveries were pending
-- KEYS[2] lease      {orders}:lease:billing              string
-- KEYS[3] agreement  {orders}:group:billing              hash
-- KEYS[4] journal    {orders}:journal                    stream
-- ARGV[1] lease of the caller  ARGV[2] group  ARGV[3] consumer that held the deliveries
-- ARGV[4] '1' = nobody can have acknowledged them ('0' = in doubt)  ARGV[5] 'stream' | 'retry': which of the two `source` is
-- ARGV[6] journal: '1' = write events  ARGV[7] journal's MAXLEN  ARGV[8] the caller's token
-- ARGV[9…] entry IDs
--
-- Returns {'ok', ID of a lost entry…} or {'stale', lease found}. Raises NOGROUP where the group is gone.
-- Fence: the whole value is compared.

local source, lease, agreement, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local own, group, consumer, is_certain, kind = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5]
local maxlen, token = ARGV[6] == '1' and tonumber(ARGV[7]) or 0, ARGV[8]
local first = 9

--- @prelude

local found = redis.call('GET', lease) or ''
if found ~= own then
  return { 'stale', found }
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
      'source', kind, 'consumer', consumer, 'generation', job.generation, 'enqueued_ms', job.first_ms, 'certain', ARGV[4] })
  end
end
if is_certain and #reply > 1 then
  redis.call('HINCRBY', agreement, 'lost_delivery', #reply - 1)
  redis.call('HSET', agreement, 'lost_delivery_ms', digits(at))
end
return reply
