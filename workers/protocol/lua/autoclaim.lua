-- pending, overdue -> pending for us | ready | suspect | dead: a worker of an embedded group recovers what it meets.
--
-- Walks over one page of the pending entries list. XPENDING shows whose each delivery is, how long it has been idle and
-- how often it was delivered, so that XAUTOCLAIM is only let loose on runs of entries that are to be claimed: never on
-- our own, on payloads that are gone (6.2 would claim those for ever), or on jobs that have had their deliveries.
-- What is overdue is claimed while there is room. Without room it is left to whoever has some, for ARGV[11]; then it is
-- made ready by a copy, as a leader does, so that nobody has to wait for us. The rest of a job's fate is recovery.lua.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream whose pending entries are meant
-- KEYS[2] stream     orders                              stream
-- KEYS[3] retry      {orders}:retry:billing              stream
-- KEYS[4] dead       {orders}:dead:billing               stream
-- KEYS[5] schedule   {orders}:scheduled:billing          sorted set: suspects are parked here
-- KEYS[6] suspects   {orders}:suspects:billing           hash: released and not settled yet
-- KEYS[7] agreement  {orders}:group:billing              hash
-- KEYS[8] journal    {orders}:journal                    stream
-- ARGV[1] group  ARGV[2] our consumer
-- ARGV[3] visibility timeout in ms, ARGV[4] max_deliveries and ARGV[5] policy, where the group has agreed on none
-- ARGV[6] journal: '1' = write events  ARGV[7] journal's MAXLEN  ARGV[8] server time in ms after which the call is void
-- ARGV[9] the cursor: where the page starts, as XPENDING takes it ('-', or '(' and the last ID looked at)
-- ARGV[10] room: how many may be claimed  ARGV[11] patience without room, in ms  ARGV[12] pending entries in a page
-- ARGV[13] payload bytes after which the call ends  ARGV[14] overdue entries after which it ends
-- ARGV[15…] entry IDs that are ours and that this process does not run: they are recovered like anybody's
--
-- Returns {'ok', server time in ms, cursor ('' = the list was walked to its end), ms until the next of this page is due
-- (-1 = none), why the call ended early ('' | 'room' | 'full'), overdue entries left for want of room, suspects parked or
-- out, results, claimed, ours}:
--   results  {code, detail, idle ms, consumer, job ID, delivery count, entry ID, and for a traced job what recovery.lua
--            tells of it}…, codes as in recover_entries.lua
--   claimed  {entry ID, times delivered, flat fields, consumer before, idle ms}…
--   ours     IDs of overdue entries that are ours: whoever has them in hand knows better
-- or {'paused'}, {'late', server time in ms}, {'refused', why}, {'reaper'} (the group has not agreed on embedded
-- recovery): nothing was done. Raises NOGROUP where the group is gone.
-- Fence: none; it acts only where the group has agreed on embedded recovery, and every entry is checked by its idle time.

--- @prelude

local source, stream, retry, dead, schedule = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local suspects, agreement, journal = KEYS[6], KEYS[7], KEYS[8]
local group, consumer = ARGV[1], ARGV[2]
local write_journal, maxlen = ARGV[6] == '1', ARGV[7]
local room, patience, page = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local budget, most = tonumber(ARGV[13]), tonumber(ARGV[14])
local first = 15
local HOLD_MS = 10000 -- what cannot be copied is looked at again after this
local CHUNK = 100 -- pending entries read at a time: a call that ends early has not read much in vain

local agreed = redis.call('HMGET', agreement, 'policy', 'visibility_ms', 'max_deliveries', 'recovery', 'paused')
if agreed[4] ~= 'embedded' then
  return { 'reaper' }
end
if agreed[5] == '1' then
  return { 'paused' }
end
local at = now_ms()
if at > tonumber(ARGV[8]) then
  return { 'late', at }
end
local policy = agreed[1] or ARGV[5]
local visibility = math.max(1, whole_number(agreed[2], tonumber(ARGV[3])))
local max_deliveries = math.max(1, whole_number(agreed[3], tonumber(ARGV[4])))

local abandoned = {}
for i = first, #ARGV do
  abandoned[ARGV[i]] = true
end

local head = '{"v":1,"group":' .. json_string(group) .. ',"mode":"embedded","visibility_ms":'
  .. string.format('%d', visibility) .. ',"entry":"'
local function event(name, job, row, count, tail)
  if write_journal then
    journal_event(journal, maxlen, name, job.job_id, head .. job.entry_id .. '","consumer":' .. json_string(row[2])
      .. ',"delivery":' .. small_digits(count) .. ',"generation":' .. job.generation .. ',"enqueued_ms":' .. job.first_ms
      .. ',"idle_ms":' .. small_digits(row[3]) .. tail .. '}')
  end
end

--- @recovery

local cursor, soonest, ended = ARGV[9], -1, ''
local results, claimed, ours = {}, {}, {}
local bytes, overdue, recovered, waiting = 0, 0, 0, 0

local function again_in(ms)
  if soonest < 0 or ms < soonest then
    soonest = ms
  end
end

local average = 0 -- payload bytes of an entry so far: large ones are not read ahead
local payload = read_ahead(function(entry_id, count)
  return redis.call('XRANGE', source, entry_id, '+', 'COUNT', average < 4096 and count or 1)
end, 64)

-- Overdue neighbours that are to be claimed: one XAUTOCLAIM takes them all, and nothing else.
local run = {}
local function claim_run()
  if #run == 0 then
    return
  end
  local taken = redis.call('XAUTOCLAIM', source, group, consumer, visibility, run[1].row[1], 'COUNT', #run)[2]
  local fields = {}
  for _, entry in ipairs(taken) do
    fields[entry[1]] = entry[2]
  end
  for _, one in ipairs(run) do
    local row = one.row
    if fields[row[1]] then
      claimed[#claimed + 1] = { row[1], row[4] + 1, fields[row[1]], row[2], row[3] }
      event('recovered', one.job, row, one.count, ',"reason":"visibility_timeout","new_entry":"' .. row[1] .. '"')
    end
  end
  run = {}
end

-- Returns the entry's result, or nothing where it is to be claimed, or where there is no room yet.
local function recover(row, left)
  local entry = payload(row[1], left)
  if not entry then
    return lose(row)
  end
  local job = open_entry(row[1], entry[2])
  bytes = bytes + job.bytes
  average = (average + job.bytes) / 2
  local count, in_company = judge(job, row)
  if count >= max_deliveries - 1 then
    return recover_job(job, row, count, in_company)
  end
  if room > 0 then
    room = room - 1
    run[#run + 1] = { row = row, job = job, count = count }
    return nil, true
  end
  local left_ms = row[3] >= 0 and visibility + patience - row[3] or 0
  if left_ms > 0 then
    waiting = waiting + 1
    again_in(left_ms)
    return nil
  end
  return recover_job(job, row, count, in_company)
end

local function tell(row, result)
  result[7], result[8] = row[1], result[7]
  results[#results + 1] = result
  if result[1] == HELD then
    again_in(HOLD_MS)
  elseif result[1] == REDELIVERED or result[1] == SUSPECTED then
    recovered = recovered + 1
  end
end

local had_room = room > 0
local refusal

-- Looks at one pending entry. Returns whether it is to be claimed; sets `ended` where the call ends in front of it.
local function look_at(row, left)
  local idle = row[3]
  if idle >= 0 and idle < visibility then
    again_in(visibility - idle)
    return false
  end
  if row[2] == consumer and not abandoned[row[1]] then
    ours[#ours + 1] = row[1]
    return false
  end
  if overdue == 0 then
    open_for_writing(source, group)
    refusal = layout_refusal(policy, stream, at)
  end
  if refusal then
    ended = 'refused'
  elseif had_room and room == 0 then
    ended, waiting = 'room', waiting + 1
  elseif bytes > budget or overdue >= most then
    ended = 'full'
  end
  if ended ~= '' then
    return false
  end
  overdue = overdue + 1
  local ok, result, to_claim = pcall(recover, row, left)
  if not ok then
    local why = type(result) == 'table' and result.err or tostring(result)
    result = { HELD, why, idle, row[2], '', row[4] }
  end
  if result then
    tell(row, result)
  end
  return ok and to_claim
end

while page > 0 and ended == '' do
  local chunk = math.min(CHUNK, page)
  local rows = redis.call('XPENDING', source, group, cursor, '+', chunk)
  for i, row in ipairs(rows) do
    local to_claim = look_at(row, #rows - i + 1)
    if not to_claim then
      claim_run()
    end
    if ended ~= '' then
      break -- the cursor stays in front of it
    end
    cursor = '(' .. row[1]
  end
  claim_run()
  page = page - chunk
  if #rows < chunk and ended == '' then
    cursor = ''
    break
  end
end
if refusal then
  return { 'refused', refusal }
end
finish_all()
if recovered + #claimed > 0 then
  redis.call('HINCRBY', agreement, 'recovered', recovered + #claimed)
end

local doubtful = 0
for _, number in ipairs({
  redis.pcall('ZCOUNT', schedule, string.format('%.0f', SUSPECT_SCORE), '+inf'), redis.pcall('HLEN', suspects),
}) do
  doubtful = doubtful + (tonumber(number) or 0)
end
return { 'ok', at, cursor, soonest, ended, waiting, doubtful, results, claimed, ours }
