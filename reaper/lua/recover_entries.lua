-- pending, overdue -> ready | suspect | dead: the leader recovers a batch of one source.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream whose pending entries are meant
-- KEYS[2] stream     orders                              stream
-- KEYS[3] retry      {orders}:retry:billing              stream
-- KEYS[4] dead       {orders}:dead:billing               stream
-- KEYS[5] schedule   {orders}:scheduled:billing          sorted set: suspects are parked here
-- KEYS[6] suspects   {orders}:suspects:billing           hash: released and not settled yet
-- KEYS[7] fence      {orders}:fence:billing              string
-- KEYS[8] agreement  {orders}:group:billing              hash
-- KEYS[9] journal    {orders}:journal                    stream
-- KEYS[10] notes     {orders}:notes:billing              hash: of what is given back where it is (prelude)
-- ARGV[1] fence of the caller: namespace:token:holder  ARGV[2] group
-- ARGV[3] visibility timeout in ms  ARGV[4] max_deliveries, both of the group; after a change to lower ones, the former ones
--         count for a while (prelude)  ARGV[5] policy: stream | retry-stream | in-place
-- ARGV[6] journal: '1' = write events  ARGV[7] journal's MAXLEN  ARGV[8] the caller's token
-- ARGV[9] payload bytes after which the rest of the batch is put off
-- ARGV[10] longest visibility timeout that a job may ask for, in ms
-- ARGV[11…] entry IDs, ascending
--
-- Returns {'ok', ready, row…}, one row an entry: {code, detail, idle ms, consumer, job ID, delivery count}, and
-- for a traced job {traceparent, tracestate, the delivery's name, what came before it}; behind that, where a job
-- asks for a visibility timeout longer than ARGV[10], what it asks for in ms
--   0 not pending any more   1 ready again, detail = new entry ID (in place: its own)   2 parked as suspect   3 dead letter,
--   detail = its ID   4 not due, detail = remaining ms   5 payload gone, acknowledged   6 cannot be copied, detail = why; stays pending
--   7 put off, ask again
-- A plain job (no field says anything of it) that is ready again, as most of a mass are, has for its row the new entry ID alone. The rest
-- is in `ready`: consumer, delivery count, {idle ms…}, consumer, …, for those that follow each other and have these in common.
-- or {'stale', fence found}, {'paused'}, {'waits', for how many ms, length of the last gap in ms} (heartbeats could not be served,
-- see heartbeat.lua), {'refused', why}: nothing was done. Raises NOGROUP where the group is gone.
-- Fence: the whole value is compared; a missing fence is stale too (a paused leader must not find an open door).

--- @prelude
--- @heartbeat

local source, stream, retry, dead, schedule = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local suspects, fence, agreement, journal, notes = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local own, group = ARGV[1], ARGV[2]
local policy = ARGV[5]
local write_journal, maxlen, token = ARGV[6] == '1', ARGV[7], ARGV[8]
local budget, longest = tonumber(ARGV[9]), tonumber(ARGV[10])
local first = 11
local items = #ARGV - first + 1

local GONE, NOT_DUE, PUT_OFF = 0, 4, 7 -- the others: recovery

local found = redis.call('GET', fence) or ''
if found ~= own then
  if write_journal then
    journal_event(journal, maxlen, 'refused', '', '{"v":1,"group":' .. json_string(group) .. ',"verb":"recover","token":'
      .. token .. ',"fence":' .. json_string(found) .. ',"entries":' .. items .. '}')
  end
  redis.pcall('HINCRBY', agreement, 'refused', 1)
  return { 'stale', found }
end
if redis.call('HGET', agreement, 'paused') == '1' then
  return { 'paused' }
end
open_for_writing(source, group)
probe_heartbeat(source, group)
local at, beat = note_beat(agreement)
local configured_ms = tonumber(ARGV[3])
local waits_ms = recovery_waits_ms(beat, at, configured_ms)
if waits_ms > 0 then
  for i = first, #ARGV do -- what was delivered in the future starts over now, not only when recovery goes on
    for _, row in ipairs(redis.call('XPENDING', source, group, ARGV[i], ARGV[i], 1)) do
      start_over(source, group, row)
    end
  end
  return { 'waits', waits_ms, beat.gap }
end
local refusal = layout_refusal(policy, stream, at)
if refusal then
  return { 'refused', refusal }
end
local bytes = 0
local visibility, max_deliveries, until_ms = group_terms(agreement, configured_ms, tonumber(ARGV[4]), at)

local pending, next_pending = read_ahead(function(entry_id, count)
  return redis.call('XPENDING', source, group, entry_id, '+', count)
end, 128, true)
local average = 0 -- payload bytes of an entry so far: large ones are not read ahead
local payload, next_payload = read_ahead(function(entry_id, count)
  return redis.call('XRANGE', source, entry_id, '+', 'COUNT', average < 4096 and count or 1)
end, 64)

local common = '"group":' .. json_string(group) .. ',"mode":"reaper","token":' .. token .. ',"visibility_ms":'
  .. string.format('%d', visibility)
local how_it_ended = 'not settled within the visibility timeout'

--- @recovery

open_for_writing(source, group, true, has_notes and notes)

-- What is told of plain jobs that are ready again: by consumer and delivery count, for how long each was idle.
local ready = {}
-- What the latest of them have in common: mostly the next one does, too. `least`: from which idle time on that is overdue.
local alike = {}

-- Makes a plain job ready again, as `recover_job` does where deliveries are left. `least`: from which idle time on its consumer's
-- deliveries are overdue. Returns the ID of its entry, or its result where it is held.
local function make_ready(row, fields, least)
  local entry_id, consumer, count = row[1], row[2], row[4]
  local pile = alike.pile
  if consumer ~= alike.consumer or count ~= alike.count then
    pile = pile_of(row)
  end
  local new_entry, why = ready_plain(row, fields, pile)
  if not new_entry then
    return { HELD, why, row[3], consumer, entry_id, count }
  end
  if pile ~= alike.pile then
    local n = #ready
    alike = { consumer = consumer, count = count, least = least, pile = pile, idle = {} }
    ready[n + 1], ready[n + 2], ready[n + 3] = consumer, count, alike.idle
  end
  local idle = alike.idle
  idle[#idle + 1] = row[3]
  return new_entry
end

-- From which idle time on a delivery of this consumer is overdue, whoever it is judged by.
local function find_least(consumer)
  if laid_aside_as(consumer) or consumer == RETURNED_CONSUMER then
    return math.huge -- it is not told by that alone
  end
  return visibility
end
local least_idle = {}

local function recover(entry_id, left)
  local row = pending(entry_id, left)
  if not row then
    return { GONE }
  end
  local consumer, idle, times = row[2], row[3], row[4]
  local least = least_idle[consumer]
  if not least then
    least = find_least(consumer)
    least_idle[consumer] = least
  end
  local is_sure = idle >= least
  if not is_sure and idle >= 0 and idle < visibility then
    start_over(source, group, row)
    local left_ms = math.min(visibility - idle, math.max(until_ms - at, configured_ms - idle, 1))
    return { NOT_DUE, left_ms, idle, consumer, '', times }
  end
  local entry = payload(entry_id, left)
  if not entry then
    return lose(row)
  end
  local fields = entry[2]
  local rest = not is_sure and result_of_rest(row, fields)
  if rest then
    return type(rest) == 'table' and rest or { NOT_DUE, visibility, 0, consumer, '', times }
  end
  local size, says = look_into(fields)
  bytes = bytes + size
  average = (average + size) / 2
  if not says and times < max_deliveries - 1 and not is_noted(entry_id, next_pending.rows) then
    return make_ready(row, fields, least)
  end
  local job = open_noted(entry_id, fields)
  local own = math.min(job.visibility_ms, longest)
  local result
  if idle >= 0 and idle < own then
    result = { NOT_DUE, own - idle, idle, consumer, job.job_id, times }
  else
    result = recover_job(job, row, judge(job, row))
  end
  if own < job.visibility_ms then
    result[7], result[8] = result[7] or false, job.visibility_ms
  end
  return result
end

-- Recovers an entry that is like the latest which was made ready, as nearly all of a mass are: nothing is looked up then, and nothing in
-- this can fail that has not failed for that one, so that it needs no pcall. Returns its row of the answer, or nil where it is not so, or
-- not known yet: nothing was done.
local function ready_alike(entry_id)
  local row, entry = next_pending.rows[next_pending.at], next_payload.rows[next_payload.at]
  if not row or row[1] ~= entry_id or row[2] ~= alike.consumer or row[4] ~= alike.count or row[3] < alike.least
    or not entry or entry[1] ~= entry_id or is_noted(entry_id, next_pending.rows) then
    return nil
  end
  local size, says = look_into(entry[2])
  if says then
    return nil
  end
  next_pending.at, next_payload.at = next_pending.at + 1, next_payload.at + 1
  bytes = bytes + size
  average = (average + size) / 2
  return make_ready(row, entry[2], alike.least)
end

local reply, recovered = { 'ok', ready }, 0
for i = 1, items do
  if bytes > budget then
    for rest = i, items do
      reply[rest + 2] = { PUT_OFF }
    end
    break
  end
  local entry_id, ok = ARGV[first + i - 1], true
  local row = ready_alike(entry_id)
  if row then -- it is done
  elseif entry_id == ARGV[first + i - 2] then -- given twice, it would be copied twice: it is acknowledged at the end only
    row = { GONE }
  else
    ok, row = pcall(recover, entry_id, items - i + 1)
  end
  if not ok then
    local why = type(row) == 'table' and row.err or tostring(row)
    if string.find(why, 'NOGROUP', 1, true) then
      return redis.error_reply(string.match(why, 'NOGROUP.*'))
    end
    row = { HELD, why, 0, '', '', 0 }
  end
  reply[i + 2] = row
  if type(row) == 'string' or row[1] == REDELIVERED or row[1] == SUSPECTED then
    recovered = recovered + 1
  end
end
finish_all()
if recovered > 0 then
  redis.call('HINCRBY', agreement, 'recovered', recovered)
end
return reply
