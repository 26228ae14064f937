-- pending (not run by anybody) -> pending for us | dead: a worker takes over what it owns and does not run.
--
-- Two cases, by ARGV[4]:
--   'restart'  entries of earlier processes of the same worker name. Counted: the process that held them died, perhaps
--              of them. A job whose next delivery is its last is a suspect and is only taken when asked for.
--   'reread'   our own entries whose delivery never arrived (the read's reply was lost). Not counted: nothing ran.
-- A bare history read (XREADGROUP … 0) would raise the count without running anything, and is not replicated.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream
-- KEYS[2] dead       {orders}:dead:billing               stream
-- KEYS[3] agreement  {orders}:group:billing              hash
-- KEYS[4] journal    {orders}:journal                    stream
-- KEYS[5] stream     orders                              stream (for the dead letter's record)
-- KEYS[6] suspects   {orders}:suspects:billing           hash: suspects that a leader released. How they crashed is for
--                                                        the leader to judge, since one may be the innocent of two
-- ARGV[1] group  ARGV[2] our consumer  ARGV[3] the consumer to take from  ARGV[4] restart | reread
-- ARGV[5] how many entries to take at most  ARGV[6] how many of them may be suspects
-- ARGV[7] max_deliveries where the group has agreed on none
-- ARGV[8] journal: '1' = write events  ARGV[9] journal's MAXLEN
-- ARGV[10] exclusive start of the page ('-' = the beginning)  ARGV[11…] entry IDs in flight here, never taken
--
-- Returns {next start ('' = done), suspects left alone, dead letters, held, taken}:
--   dead letters  {job ID, entry ID, delivery count, dead letter's ID, idle ms}…, and of a traced job, sixth, what
--                 recovery.lua tells of one
--   held          {entry ID, why}… that should be dead letters and could not be copied; they stay pending
--   taken         {entry ID, times delivered, flat fields, ms for which it was idle}…
-- Fence: none needed; a settlement by the earlier owner is refused, since consumer and count have changed.

--- @prelude

local source, dead, agreement, journal, stream, released = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local group, consumer, from, restart = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == 'restart'
local room, suspect_room = tonumber(ARGV[5]), tonumber(ARGV[6])
local write_journal, maxlen = ARGV[8] == '1', ARGV[9]
local PAGE = 100
local MAX_BYTES = 1048576 -- of payloads a call returns or copies, give or take one entry

local in_flight = {}
for i = 11, #ARGV do
  in_flight[ARGV[i]] = true
end

open_for_writing(source, group)
local agreed = redis.call('HGET', agreement, 'max_deliveries')
local max_deliveries = math.max(1, whole_number(agreed, tonumber(ARGV[7])))
local at = now_ms()
local suspects, bytes = 0, 0
local taken, dead_letters, held = {}, {}, {}

local function data(job, count, idle)
  return '{"v":1,"group":' .. json_string(group) .. ',"entry":' .. json_string(job.entry_id) .. ',"consumer":'
    .. json_string(from) .. ',"delivery":' .. string.format('%d', count) .. ',"generation":'
    .. string.format('%d', job.generation) .. ',"idle_ms":' .. string.format('%d', idle)
    .. ',"enqueued_ms":' .. string.format('%d', job.first_ms)
end

local function event(name, job, text)
  if write_journal then
    journal_event(journal, maxlen, name, job.job_id, text .. '}')
  end
end

local function adopt(entry_id, idle, times)
  local entry = redis.call('XRANGE', source, entry_id, entry_id)[1]
  if not entry then
    redis.call('XACK', source, group, entry_id)
    event('lost_payload', { job_id = entry_id }, data({ entry_id = entry_id, generation = 0, first_ms = 0 }, times, idle))
    return
  end
  for i = 1, #entry[2] do
    bytes = bytes + #entry[2][i]
  end
  local job = open_entry(entry_id, entry[2])
  local count = delivery_count(job, times, max_deliveries)
  if not restart then
    redis.call('XCLAIM', source, group, consumer, 0, entry_id, 'JUSTID')
    taken[#taken + 1] = { entry_id, times, entry[2], idle }
  elseif redis.call('HEXISTS', released, entry_id) == 1 then
    return -- it stays pending, and falls due
  elseif count >= max_deliveries then
    local traced = job.traceparent and traced_delivery(job, times) or nil
    leave_trace(job, times, 'r')
    local id, why = add_entry(dead, dead_letter_fields(job, {
      stream = stream, group = group, reason = 'max_deliveries', error = 'the worker process ended while it held the job',
      deliveries = count, consumers = with_consumer(job, from), last_ms = at - math.max(idle, 0), at_ms = at,
    }))
    if not id then
      held[#held + 1] = { entry_id, why }
      return
    end
    redis.call('XACK', source, group, entry_id)
    if source ~= stream then
      redis.call('XDEL', source, entry_id)
    end
    dead_letters[#dead_letters + 1] = { job.job_id, entry_id, count, id, idle, traced }
    event('dead_lettered', job, data(job, count, idle) .. ',"mode":"adopt","reason":"max_deliveries","dead_letter":'
      .. json_string(id))
  elseif count == max_deliveries - 1 and suspect_room == 0 then
    suspects = suspects + 1
  else
    if count == max_deliveries - 1 then
      suspect_room = suspect_room - 1
    end
    redis.call('XCLAIM', source, group, consumer, 0, entry_id, 'RETRYCOUNT', times + 1, 'JUSTID')
    taken[#taken + 1] = { entry_id, times + 1, entry[2], idle }
    event('recovered', job, data(job, count, idle) .. ',"mode":"adopt","reason":"restart","new_entry":'
      .. json_string(entry_id))
  end
end

local start = ARGV[10] == '-' and '-' or '(' .. ARGV[10]
local rows = redis.call('XPENDING', source, group, start, '+', PAGE, from)
local last = ''
for _, row in ipairs(rows) do
  if #taken >= room or bytes >= MAX_BYTES then
    break
  end
  last = row[1]
  if not in_flight[last] then
    adopt(last, row[3], row[4])
  end
end
if #rows < PAGE and (#rows == 0 or last == rows[#rows][1]) then
  last = ''
end
return { last, suspects, dead_letters, held, taken }
