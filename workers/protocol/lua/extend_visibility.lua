-- pending -> pending, anew: a worker's heartbeat, for many deliveries of one source in one call, or for none of them: it notes the
-- beat as well (heartbeat.lua).
--
-- Idle time starts over, count and owner stay. Nothing is ever taken back: what was recovered, adopted or settled
-- meanwhile is refused.
--
-- KEYS[1] source   orders, or {orders}:retry:billing   stream the deliveries were read from
-- KEYS[2] journal  {orders}:journal                    stream, read only
-- KEYS[3] agreement  {orders}:group:billing            hash, and
-- KEYS[4] stream     orders                            stream: where they are named, result 3 is told from 0
-- KEYS[5] retry      {orders}:retry:billing            stream, named only (see beat.lua)
-- KEYS[6] suspects   {orders}:suspects:billing         hash, may be left out: who extends a suspect shows that it has got it
-- ARGV[1] group  ARGV[2] consumer (of every item)
-- ARGV[3…] per item: entry ID, PEL delivery count (and behind commas when it was proven alive last, and until when that counts, see
-- hold_again.lua; and then `,lost`, where the worker knows that the payload is gone)
--
-- Returns one result an item: 1 extended, 0 refused (the delivery is not ours any more), 2 payload gone (trimmed or
-- deleted by somebody; left as it is, since from 7.0 on XCLAIM would drop it from the pending entries list unseen), 3 vanished:
-- somebody deleted the consumer, the group, or the entry with its reference, and nobody else has the delivery (hold_again.lua makes it
-- ours again, or reports what is deleted), 4 not pending for
-- this consumer, and the call came too late to be believed: to be asked again; 5 a read has just taken it, as the clock was set back, and
-- will give it back (is_taken): neither extended nor lost.
-- Where KEYS[3] is named, the server's time (ms) stands behind them.
-- Raises NOGROUP where the group is gone.
-- Fence: the entry is pending for this consumer *and* with this delivery count. XCLAIM alone would take any entry.

--- @prelude
--- @heartbeat

local source, journal, agreement, stream, suspects = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6]
local group, consumer = ARGV[1], ARGV[2]

local REFUSED, EXTENDED, PAYLOAD_GONE, VANISHED, LATE, TAKEN = 0, 1, 2, 3, 4, 5
local ITEM = 2
local first = 3
local items = (#ARGV - first + 1) / ITEM

local pending = read_ahead(function(entry_id, count)
  return redis.call('XPENDING', source, group, entry_id, '+', count, consumer)
end, 128)

local function judge(entry_id, times, proven, is_late, is_known_lost, left)
  local row = pending(entry_id, left)
  if not row and is_late then
    return LATE
  end
  if not row and agreement and has_vanished(source, stream, group, agreement, consumer, entry_id, times, proven, journal) then
    return VANISHED
  end
  if not row and agreement and is_deleted(source, group, agreement, consumer, entry_id, proven) then
    return is_known_lost and PAYLOAD_GONE or VANISHED
  end
  if not row or row[4] ~= times then
    return agreement and is_taken(source, group, agreement, consumer, entry_id, times, proven) and TAKEN or REFUSED
  end
  if #redis.call('XRANGE', source, entry_id, entry_id) == 0 then
    return PAYLOAD_GONE
  end
  return EXTENDED
end

-- Its delivery is seen from now on: this is no sign yet that the handler lives.
local function note_arrival(entry_id, times)
  local value = redis.pcall('HGET', suspects, entry_id)
  local suspect = type(value) == 'string' and read_suspect(value)
  if suspect and suspect.kind and suspect.arrived ~= times then
    suspect.arrived, suspect.times, suspect.since = times, times, now_ms()
    redis.pcall('HSET', suspects, entry_id, written_suspect(suspect))
  end
end

open_for_writing(source, group)
local has_suspects = suspects and redis.pcall('EXISTS', suspects) == 1
local results, extended = {}, {}
for i = 1, items do
  local item = first + (i - 1) * ITEM
  local times, proven, is_late, is_known_lost = read_count(ARGV[item + 1])
  results[i] = judge(ARGV[item], times, proven, is_late, is_known_lost, items - i + 1)
  if results[i] == EXTENDED then
    extended[#extended + 1] = ARGV[item]
    if has_suspects then
      note_arrival(ARGV[item], times)
    end
  end
end
for from = 1, #extended, 1000 do
  local call = { unpack(extended, from, math.min(from + 999, #extended)) }
  call[#call + 1] = 'JUSTID' -- the count stays
  redis.call('XCLAIM', source, group, consumer, 0, unpack(call))
end
if #extended == 0 then -- an answer means that this worker may extend, and so does the beat
  probe_heartbeat(source, group)
end
if agreement then -- last: the beat means that everything above was served
  results[items + 1] = (note_beat(agreement))
end
return results
