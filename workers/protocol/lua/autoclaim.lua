-- pending, overdue -> pending for us | ready | suspect | dead: a worker of an embedded group recovers what it meets.
--
-- Walks over one page of the pending entries list. XPENDING shows whose each delivery is, how long it has been idle and
-- how often it was delivered, so that XAUTOCLAIM (or, for neighbours, XCLAIM) is only let loose on runs of overdue entries, and
-- never on our own. What it brings is judged by its payload then, since reading that twice costs: a job that had its deliveries is ended at once,
-- and goes back to its consumer where it cannot be; a payload that is gone (6.2 would claim it for ever) is acknowledged.
-- Judged before it is claimed is whatever the list alone convicts, or may be a released suspect.
-- What is overdue is claimed while there is room, unless there is a note of it, which reads have to bring. Without room it is left to
-- whoever has some, for ARGV[10]; then it is made ready, as a leader does, so that nobody has to wait for us. The rest of a job's fate
-- is recovery.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream whose pending entries are meant
-- KEYS[2] stream     orders                              stream
-- KEYS[3] retry      {orders}:retry:billing              stream
-- KEYS[4] dead       {orders}:dead:billing               stream
-- KEYS[5] schedule   {orders}:scheduled:billing          sorted set: suspects are parked here
-- KEYS[6] suspects   {orders}:suspects:billing           hash: released and not settled yet
-- KEYS[7] agreement  {orders}:group:billing              hash
-- KEYS[8] journal    {orders}:journal                    stream
-- KEYS[9] notes      {orders}:notes:billing              hash: of what is given back where it is (prelude)
-- ARGV[1] group  ARGV[2] our consumer
-- ARGV[3] visibility timeout in ms, ARGV[4] max_deliveries and ARGV[5] policy, where the group has agreed on none; after a
--         change to lower ones, the former ones count for a while (prelude)
-- ARGV[6] journal: '1' = write events  ARGV[7] journal's MAXLEN
-- ARGV[8] the cursor: where the page starts, as XPENDING takes it ('-', or '(' and the last ID looked at)
-- ARGV[9] room: how many may be claimed  ARGV[10] patience without room, in ms  ARGV[11] pending entries in a page
-- ARGV[12] payload bytes after which the call ends  ARGV[13] overdue entries after which it ends
-- ARGV[14…] entry IDs that are ours and that this process does not run: they are recovered like anybody's
--
-- Returns {'ok', server time in ms, cursor ('' = the list was walked to its end), ms until the next of this page is due
-- (-1 = none), why the call ended early ('' | 'room' | 'full'), overdue entries left for want of room, suspects parked or
-- out, results, claimed, ours}:
--   results  {code, detail, idle ms, consumer, job ID, delivery count, entry ID, and for a traced job what recovery
--            tells of it}…, codes as in recover_entries.lua
--   claimed  {entry ID, times delivered, flat fields, consumer before, idle ms}…
--   ours     IDs of overdue entries that are ours: whoever has them in hand knows better
-- or {'paused'}, {'waits', for how many ms, length of the last gap in ms} (see heartbeat.lua), {'refused', why}, {'reaper'} (the group has not agreed on embedded
-- recovery): nothing was done. Raises NOGROUP where the group is gone.
-- Fence: none; it acts only where the group has agreed on embedded recovery, and every entry is checked by its idle time.

--- @prelude
--- @heartbeat

local source, stream, retry, dead, schedule = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local suspects, agreement, journal, notes = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local group, consumer = ARGV[1], ARGV[2]
local write_journal, maxlen = ARGV[6] == '1', ARGV[7]
local room, patience, page = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local budget, most = tonumber(ARGV[12]), tonumber(ARGV[13])
local first = 14
local HOLD_MS = 10000 -- what cannot be copied is looked at again after this
local CHUNK, SPARE = 100, 16 -- pending entries read at a time: a call that ends early has not read much in vain
local LONGEST_RUN = 64 -- entries that one XAUTOCLAIM takes

local agreed = redis.call('HMGET', agreement, 'policy', 'visibility_ms', 'max_deliveries', 'recovery', 'paused')
if agreed[4] ~= 'embedded' then
  return { 'reaper' }
end
if agreed[5] == '1' then
  return { 'paused' }
end
local policy = agreed[1] or ARGV[5]
local agreed_ms = math.max(1, whole_number(agreed[2], tonumber(ARGV[3])))
open_for_writing(source, group)
probe_heartbeat(source, group)
local at, beat = note_beat(agreement)
local waits_ms = recovery_waits_ms(beat, at, agreed_ms)
if waits_ms > 0 then
  return { 'waits', waits_ms, beat.gap }
end
local agreed_limit = math.max(1, whole_number(agreed[3], tonumber(ARGV[4])))
local visibility, max_deliveries, until_ms = group_terms(agreement, agreed_ms, agreed_limit, at)

local abandoned = {}
for i = first, #ARGV do
  abandoned[ARGV[i]] = true
end

local common = '"group":' .. json_string(group) .. ',"mode":"embedded","visibility_ms":' .. string.format('%d', visibility)
local how_it_ended = 'not settled within the visibility timeout'

--- @recovery

local cursor, soonest, ended = ARGV[8], -1, ''
local rows = {} -- of the list, that were read together
local results, claimed, ours = {}, {}, {}
local bytes, overdue, recovered, waiting = 0, 0, 0, 0

local function again_in(ms)
  if soonest < 0 or ms < soonest then
    soonest = ms
  end
end

local opened, average = 0, 0 -- payloads, and bytes of one so far: large ones are not read ahead
local function opened_one(size)
  opened, bytes = opened + 1, bytes + size
  average = bytes / opened
end

local payload = read_ahead(function(entry_id, count)
  return redis.call('XRANGE', source, entry_id, '+', 'COUNT', average < 4096 and count or 1)
end, 64)

local function tell(row, result)
  result[7], result[8] = row[1], result[7]
  results[#results + 1] = result
  if result[1] == HELD then
    again_in(HOLD_MS)
  elseif result[1] == REDELIVERED or result[1] == SUSPECTED then
    recovered = recovered + 1
  end
end

-- Runs `act`, so that one bad entry stops nothing, and tells its result. Returns whether the entry need not be held.
local function try_to(act, row, ...)
  local ok, result = pcall(act, row, ...)
  if not ok then
    result = { HELD, type(result) == 'table' and result.err or tostring(result), row[3], row[2], '', row[4] }
  end
  if result then
    tell(row, result)
  end
  return not result or result[1] ~= HELD
end

local function tell_claim(job, row, count)
  if not job then
    return tell_plain(pile_of(row), row, row[1])
  end
  event('recovered', job, row, count, ',"reason":"visibility_timeout","new_entry":"' .. row[1] .. '"')
end

local function give_back(row)
  redis.call('XCLAIM', source, group, row[2], 0, row[1], 'IDLE', row[3], 'RETRYCOUNT', row[4], 'JUSTID')
end

-- A payload that XAUTOCLAIM did not bring. What it left alone for another reason stays as it is.
local function look_for_payload(row)
  return not redis.call('XRANGE', source, row[1], row[1])[1] and lose(row) or nil
end

-- Overdue neighbours that are to be claimed: one call takes them all, and nothing else. A run is not longer than
-- what its payloads let expect.
local run, n_run, longest = {}, 0, 1

-- Claims a run; returns {entry ID, flat fields}… of what is ours by that, as XAUTOCLAIM does. That looks each entry up by itself: where
-- they are neighbours in the stream, too, and were delivered equally often, XRANGE and XCLAIM do the same for a seventh less.
local are_together = true
local function claim()
  local entries, times, words = {}, run[1][4], {}
  if are_together then
    entries = redis.call('XRANGE', source, run[1][1], run[n_run][1], 'COUNT', n_run)
  end
  for i = 1, n_run do
    local entry = entries[i]
    are_together = are_together and entry ~= nil and entry[1] == run[i][1] and times == run[i][4]
    words[i] = run[i][1]
  end
  if not are_together then -- nor what follows, mostly
    return redis.call('XAUTOCLAIM', source, group, consumer, visibility, run[1][1], 'COUNT', n_run)[2]
  end
  words[n_run + 1], words[n_run + 2], words[n_run + 3] = 'RETRYCOUNT', times + 1, 'JUSTID'
  local ids = redis.call('XCLAIM', source, group, consumer, visibility, unpack(words))
  return #ids == n_run and entries or {} -- what is ours all the same is found as that
end

-- What there is to know of a job beyond its row, if there is anything: the job, how often it was delivered, and what is in doubt of that.
local function more_of(row, fields)
  local size, says = look_into(fields)
  opened_one(size)
  if says or row[4] >= max_deliveries - 1 or is_noted(row[1], rows) then
    local job = open_noted(row[1], fields)
    return job, judge(job, row)
  end
end

local function claim_run()
  if n_run == 0 then
    return
  end
  local taken, at_taken = claim(), 1
  for i = 1, n_run do
    local row, entry = run[i], taken[at_taken]
    local is_there = entry and entry[1] == row[1]
    if is_there or entry == false then -- 6.2 has false for a payload that is gone, later versions leave it out
      at_taken = at_taken + 1
    end
    local job, count, in_doubt
    if is_there then
      job, count, in_doubt = more_of(row, entry[2])
    end
    if not is_there then
      room = room + 1
      try_to(look_for_payload, row)
    elseif job and (job.suspect or count >= max_deliveries - 1) then
      room = room + 1
      if not try_to(function() return recover_job(job, row, count, in_doubt) end, row) then
        give_back(row)
      end
    else
      claimed[#claimed + 1] = { row[1], row[4] + 1, entry[2], row[2], row[3] }
      tell_claim(job, row, count)
    end
  end
  run, n_run = {}, 0
  longest = math.max(1, math.min(4 * longest, LONGEST_RUN, math.ceil((budget - bytes) / math.max(average, 1))))
end

-- Looks at the payload first. Returns the entry's result, or nothing where it was claimed, or where there is no room yet.
local function recover(row, left)
  local entry = payload(row[1], left)
  if not entry then
    return lose(row)
  end
  local job, count, in_doubt = more_of(row, entry[2])
  if job and (job.suspect or count >= max_deliveries - 1 or is_noted(row[1], rows)) then -- its note is for who reads it
    return recover_job(job, row, count, in_doubt)
  end
  if room > 0 then
    local taken = redis.call('XAUTOCLAIM', source, group, consumer, visibility, row[1], 'COUNT', 1)[2][1]
    if taken and taken[1] == row[1] then
      room = room - 1
      claimed[#claimed + 1] = { row[1], row[4] + 1, taken[2], row[2], row[3] }
      tell_claim(job, row, count)
    end
    return nil
  end
  local left_ms = row[3] >= 0 and visibility + patience - row[3] or 0
  if left_ms > 0 then
    waiting = waiting + 1
    again_in(left_ms)
    return nil
  end
  if job then
    return recover_job(job, row, count, in_doubt)
  end
  local new_entry, why = ready_plain(row, entry[2], pile_of(row))
  return { new_entry and REDELIVERED or HELD, new_entry or why, row[3], row[2], row[1], row[4] }
end

local had_room = room > 0
local nobody_is_suspected = redis.pcall('HLEN', suspects) == 0
local refusal, is_refusal_known = nil, false

-- What was laid aside by policy `in-place` is nobody's delivery, unless nobody remembers why. Returns whether `row` needs no other look.
local function rests(row, left)
  claim_run()
  if laid_aside_as(row[2]) == 'ready' and not in_place then -- it is to be copied
    refusal = refusal or layout_refusal(policy, stream, at)
    if refusal then
      ended = 'refused'
      return true
    end
  end
  open_for_writing(source, group, true, has_notes and notes)
  local entry, is_rest = payload(row[1], left), false
  try_to(function()
    local result = entry and result_of_rest(row, entry[2])
    is_rest = result and true or false
    return type(result) == 'table' and result or nil
  end, row)
  if is_rest then
    overdue = overdue + 1
    again_in(visibility)
  end
  return is_rest
end

-- What is of this consumer, was delivered so often and is idle for so long is to be claimed as the one before it, as nearly all of a mass
-- is: nothing is looked up for it.
local alike = {}
-- Looks at one pending entry. Sets `ended` where the call ends in front of it.
local function look_at(row, left)
  local idle = row[3]
  if idle >= 0 and idle < visibility then
    claim_run()
    start_over(source, group, row)
    return again_in(math.min(visibility - idle, math.max(until_ms - at, agreed_ms - idle, 1)))
  end
  if (laid_aside_as(row[2]) or row[2] == RETURNED_CONSUMER) and rests(row, left) then
    return
  end
  if row[2] == consumer and not abandoned[row[1]] then
    claim_run()
    ours[#ours + 1] = row[1]
    return
  end
  if not is_refusal_known then
    is_refusal_known = true
    open_for_writing(source, group, true, has_notes and notes)
    refusal = layout_refusal(policy, stream, at)
  end
  if n_run >= longest or room == 0 then
    claim_run() -- may make room
  end
  if refusal then
    ended = 'refused'
  elseif had_room and room == 0 then
    ended, waiting = 'room', waiting + 1
  elseif bytes > budget or overdue >= most then
    ended = 'full'
  end
  if ended ~= '' then
    return
  end
  overdue = overdue + 1
  if room > 0 and idle >= 0 and row[4] < max_deliveries - 1 and nobody_is_suspected
    and not is_noted(row[1], rows) then
    room = room - 1
    n_run = n_run + 1
    run[n_run] = row
    if row[2] ~= consumer and not laid_aside_as(row[2]) and row[2] ~= RETURNED_CONSUMER then
      alike = { consumer = row[2], count = row[4] }
    end
  else
    claim_run()
    try_to(recover, row, left)
  end
end

-- Reads the page, a chunk at a time.
local function walk()
  while page > 0 and ended == '' do
    local chunk = math.min(page, CHUNK, had_room and room + SPARE or CHUNK)
    rows = redis.call('XPENDING', source, group, cursor, '+', chunk)
    local last
    for i = 1, #rows do
      local row = rows[i]
      if row[2] == alike.consumer and row[4] == alike.count and row[3] >= visibility and n_run < longest and room > 0 and overdue < most
        and bytes <= budget and not is_noted(row[1], rows) then
        room, overdue, n_run = room - 1, overdue + 1, n_run + 1
        run[n_run] = row
      else
        look_at(row, #rows - i + 1)
        if ended ~= '' then
          break -- the cursor stays in front of it
        end
      end
      last = row[1]
    end
    cursor = last and '(' .. last or cursor
    claim_run()
    page = page - chunk
    if (#rows < chunk or last == LAST_ID) and ended == '' then
      cursor = ''
      break
    end
  end
end

walk()
if refusal then
  return { 'refused', refusal }
end
finish_all()
if recovered + #claimed > 0 then
  redis.call('HINCRBY', agreement, 'recovered', recovered + #claimed)
end

local function suspected()
  local known = 0
  for _, number in ipairs({
    redis.pcall('ZCOUNT', schedule, string.format('%.0f', SUSPECT_SCORE), '+inf'), redis.pcall('HLEN', suspects),
  }) do
    known = known + (tonumber(number) or 0)
  end
  return known
end
return { 'ok', at, cursor, soonest, ended, waiting, suspected(), results, claimed, ours }
