-- pending (not run by anybody) -> pending for us | dead: a worker takes over what it owns and does not run.
--
-- Three cases, by ARGV[4]:
--   'restart'  entries of earlier processes of the same worker name. Counted: the process that held them died, perhaps
--              of them. A job whose next delivery is its last is a suspect. Where somebody lets suspects out (a leader serves
--              the group, or it is embedded) it is parked, or given up, as in any recovery (recovery); where nobody does,
--              it is only taken when asked for.
--   'reread'   our own entries whose delivery never arrived (the read's reply was lost). Not counted: nothing ran.
--   'claimed'  the same after a lost reply of a read with CLAIM. What was delivered before it may be in somebody's hands (return_taken.lua):
--              it is given back, whether it was or not, under the count that it had. Where it was nobody's it falls due.
-- A bare history read (XREADGROUP … 0) would raise the count without running anything, and is not replicated.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream
-- KEYS[2] dead       {orders}:dead:billing               stream
-- KEYS[3] agreement  {orders}:group:billing              hash
-- KEYS[4] journal    {orders}:journal                    stream
-- KEYS[5] stream     orders                              stream (for the dead letter's record)
-- KEYS[6] suspects   {orders}:suspects:billing           hash: suspects that are out. Where nobody lets suspects out now,
--                                                        these are left for the next leader to judge
-- KEYS[7] schedule   {orders}:scheduled:billing          sorted set
-- KEYS[8] retry      {orders}:retry:billing              stream
-- KEYS[9] notes      {orders}:notes:billing              hash: of what is given back where it is (prelude)
-- ARGV[1] group  ARGV[2] our consumer  ARGV[3] the consumer to take from  ARGV[4] restart | reread | claimed
-- ARGV[5] how many entries to take at most  ARGV[6] how many of them may be suspects
-- ARGV[7] max_deliveries, and ARGV[8] policy, where the group has agreed on none; after a change to a lower one the former one counts for a while
-- ARGV[9] journal: '1' = write events  ARGV[10] journal's MAXLEN
-- ARGV[11] exclusive start of the page ('-' = the beginning)  ARGV[12…] what is in flight here and never taken: entry ID, and how
--          often it was delivered ('0' = whatever that is), by turns
--
-- Returns {next start ('' = done), suspects left alone, dead letters, held, taken}:
--   dead letters  {job ID, entry ID, delivery count, dead letter's ID, idle ms}…, and of a traced job, sixth, what
--                 recovery tells of one
--   held          {entry ID, why}… that should be dead letters and could not be copied; they stay pending
--   taken         {entry ID, times delivered, flat fields, ms for which it was idle, what is noted of the job ('' = nothing)}…
-- Fence: none needed; a settlement by the earlier owner is refused, since consumer and count have changed.

--- @prelude

local source, dead, agreement, journal, stream, suspects = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local schedule, retry, notes = KEYS[7], KEYS[8], KEYS[9]
local group, consumer, from, restart, claimed = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == 'restart', ARGV[4] == 'claimed'
local room, suspect_room = tonumber(ARGV[5]), tonumber(ARGV[6])
local write_journal, maxlen = ARGV[9] == '1', ARGV[10]
local PAGE = 100
local MAX_BYTES = 1048576 -- of payloads a call returns or copies, give or take one entry

local in_flight = {}
for i = 12, #ARGV, 2 do
  in_flight[ARGV[i]] = ARGV[i + 1]
end
-- With another count it is a delivery that has never arrived: what is in flight here was given back by others meanwhile.
local function is_in_flight(row)
  local times = in_flight[row[1]]
  return times == '0' or times == small_digits(row[4])
end

open_for_writing(source, group)
local at = now_ms()
local agreed = redis.call('HMGET', agreement, 'max_deliveries', 'policy', 'recovery', 'served_until')
local max_deliveries, policy = math.max(1, whole_number(agreed[1], tonumber(ARGV[7]))), agreed[2] or ARGV[8]
max_deliveries = select(2, group_terms(agreement, 0, max_deliveries, at))
local gate = has_gate(agreed[3], agreed[4], at) and not layout_refusal(policy, stream, at)

local common = '"group":' .. json_string(group) .. ',"mode":"adopt"'
local how_it_ended = 'the worker process ended while it held the job'

--- @recovery

open_for_writing(source, group, true, has_notes and notes)
local suspects_left, bytes, parked = 0, 0, false
local taken, dead_letters, held = {}, {}, {}

local function tell_lost(row)
  count_lost_payload(agreement)
  if write_journal then
    journal_event(journal, maxlen, 'lost_payload', row[1], '{"v":1,"group":' .. json_string(group) .. ',"entry":"' .. row[1]
      .. '","consumer":' .. json_string(from) .. ',"delivery":' .. small_digits(row[4])
      .. ',"generation":0,"idle_ms":' .. small_digits(row[3]) .. ',"enqueued_ms":0}')
  end
end

-- Gives up a job, or parks it.
local function end_here(job, row, count, in_doubt)
  local result = recover_job(job, row, count, in_doubt)
  if result[1] == DEAD then
    dead_letters[#dead_letters + 1] = { job.job_id, row[1], count, result[2], row[3], result[7] }
  elseif result[1] == HELD then
    held[#held + 1] = { row[1], result[2] }
  else
    parked = true
  end
end

local function take_entry(row, times, fields)
  taken[#taken + 1] = { row[1], times, fields, row[3], has_notes and redis.call('HGET', notes, row[1]) or '' }
end

-- Takes over what an earlier process held.
local function take_counted(job, row, fields)
  local entry_id, times = row[1], row[4]
  local count = delivery_count(job, times, max_deliveries)
  if gate and (job.suspect or count >= max_deliveries - 1) then
    return end_here(job, row, judge(job, row))
  elseif redis.call('HEXISTS', suspects, entry_id) == 1 then
    return -- it stays pending, and falls due
  elseif count >= max_deliveries then
    return end_here(job, row, count, false)
  elseif job.suspect or count == max_deliveries - 1 then
    if suspect_room == 0 then
      suspects_left = suspects_left + 1
      return
    end
    suspect_room = suspect_room - 1
  end
  redis.call('XCLAIM', source, group, consumer, 0, entry_id, 'RETRYCOUNT', times + 1, 'JUSTID')
  take_entry(row, times + 1, fields)
  event('recovered', job, row, count, ',"reason":"restart","new_entry":"' .. entry_id .. '"')
end

-- Takes what never arrived. Its idle time starts over, which is no proof of life: a suspect's delivery is forgotten.
local function take_again(row, fields)
  local value = redis.call('HGET', suspects, row[1])
  redis.call('XCLAIM', source, group, consumer, 0, row[1], 'JUSTID')
  if value then
    local suspect = read_suspect(value)
    suspect.times, suspect.arrived = nil, nil
    redis.call('HSET', suspects, row[1], written_suspect(suspect))
  end
  take_entry(row, row[4], fields)
end

local function adopt(row)
  local entry = redis.call('XRANGE', source, row[1], row[1])[1]
  if not entry then
    redis.call('XACK', source, group, row[1])
    return tell_lost(row)
  end
  local job = open_noted(row[1], entry[2])
  bytes = bytes + job.bytes
  if restart then
    take_counted(job, row, entry[2])
  elseif claimed and row[4] > 1 then
    give_back_taken(source, stream, group, schedule, row[1], row[4] - 1)
  else
    take_again(row, entry[2])
  end
end

local start = ARGV[11] == '-' and '-' or '(' .. ARGV[11]
local rows = redis.call('XPENDING', source, group, start, '+', PAGE, from)
local last = ''
for _, row in ipairs(rows) do
  if #taken >= room or bytes >= MAX_BYTES then
    break
  end
  last = row[1]
  if not is_in_flight(row) then
    adopt(row)
  end
end
if last == LAST_ID or (#rows < PAGE and (#rows == 0 or last == rows[#rows][1])) then
  last = ''
end
finish_all()
if restart then -- should it live: what it was proven to run before this is nobody's to hold again (has_vanished)
  local word = read_word(redis.call('HGET', agreement, 'member:' .. from) or '')
  if word then
    word.since = at + 1
    redis.call('HSET', agreement, 'member:' .. from, written_word(word))
  end
end
if parked then
  wake(schedule, at) -- whoever looks at the schedule lets suspects out
end
return { last, suspects_left, dead_letters, held, taken }
