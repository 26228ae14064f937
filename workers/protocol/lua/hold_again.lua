-- vanished -> pending for us: a live worker takes back what it runs, after somebody deleted its consumer, or the group. An entry that
-- somebody deleted together with its pending reference cannot be taken back: it is reported, and the worker runs the job to its end.
--
-- A call of its own, after extend_visibility.lua has said that they vanished: the worker looks first whether it has settled them
-- meanwhile, and settles none while this call is under way. Else what it has just acknowledged would be pending again.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream
-- KEYS[2] stream     orders                              stream
-- KEYS[3] agreement  {orders}:group:billing              hash, and
-- KEYS[4] suspects   {orders}:suspects:billing           hash, and
-- KEYS[5] notes      {orders}:notes:billing              hash: may be left out. A suspect that vanished was taken for settled, and the
--                                                        next one let out; it is out again, so that nobody dies for the other
-- KEYS[6] journal    {orders}:journal                    stream: may be left out. Where the server has lost this delivery, and another one
--                                                        was settled since, the journal alone tells
-- ARGV[1] group  ARGV[2] our consumer  ARGV[3] journal: '1' = write events  ARGV[4] journal's MAXLEN
-- ARGV[5…] per item: entry ID, job ID, its delivery count, and behind commas when
-- it was proven alive last and until when that counts (server's ms; may be left out: what is told apart by the first alone is refused then)
--
-- Returns one number an item: 1 ours (again, or still), 0 not ours any more, 3 ours alone, for its entry and its reference are
-- deleted, 2 the call came too late to tell, or a read has just taken it, as the clock was set back, and will give it back
-- (is_taken): to be asked again.
-- Raises NOGROUP where the group is gone.
-- Fence: none; nothing is taken from anybody.

--- @prelude

local source, stream, agreement, suspects, notes, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local group, consumer = ARGV[1], ARGV[2]
local write_journal, maxlen = journal and ARGV[3] == '1', ARGV[4]
local first, ITEM = 5, 3

local function report_deleted(entry_id, job_id, times)
  count_lost_payload(agreement)
  if write_journal then
    journal_event(journal, maxlen, 'lost_payload', job_id, '{"v":1,"group":' .. json_string(group) .. ',"entry":"' .. entry_id
      .. '","consumer":' .. json_string(consumer) .. ',"delivery":' .. small_digits(times) .. ',"generation":0,"enqueued_ms":0}')
  end
end

local function count_as_out(entry_id, times)
  local entry = redis.call('XRANGE', source, entry_id, entry_id)[1]
  local note = redis.pcall('HGET', notes, entry_id)
  local job = entry and with_note(open_entry(entry_id, entry[2]), type(note) == 'string' and note or nil)
  if job and job.suspect then
    local kind = source == stream and 'stream' or 'retry'
    redis.pcall('HSETNX', suspects, entry_id, written_suspect({ kind = kind, company = job.suspect, arrived = times }))
  end
end

open_for_writing(source, group)
local agreed = redis.call('HMGET', agreement, 'recovery', 'served_until')
local lets_suspects_out = notes and has_gate(agreed[1], agreed[2], now_ms())
local results = {}
for i = first, #ARGV, ITEM do
  local entry_id, result = ARGV[i], 0
  local times, proven, is_late = read_count(ARGV[i + 2])
  local row = redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1]
  local is_ours = row and row[2] == consumer
  if is_ours and row[4] == times then
    result = 1
  elseif (is_late and not is_ours) or is_taken(source, group, agreement, consumer, entry_id, times, proven) then
    result = 2
  elseif has_vanished(source, stream, group, agreement, consumer, entry_id, times, proven, journal) then
    hold_again(source, group, consumer, entry_id, times)
    if lets_suspects_out then
      count_as_out(entry_id, times)
    end
    result = 1
  elseif is_deleted(source, group, agreement, consumer, entry_id, proven) then
    report_deleted(entry_id, ARGV[i + 1], times)
    result = 3
  end
  results[#results + 1] = result
end
return results
