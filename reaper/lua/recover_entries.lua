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
-- KEYS[10] notes     {orders}:notes:billing              hash: of what is given back where it is (prelude.lua)
-- ARGV[1] fence of the caller: namespace:token:holder  ARGV[2] group
-- ARGV[3] visibility timeout in ms  ARGV[4] max_deliveries, both of the group: where a worker has joined with higher ones,
--         those hold for its deliveries (prelude.lua)  ARGV[5] policy: stream | retry-stream | in-place
-- ARGV[6] journal: '1' = write events  ARGV[7] journal's MAXLEN  ARGV[8] the caller's token
-- ARGV[9] payload bytes after which the rest of the batch is put off
-- ARGV[10] server time in ms after which the call is void, and steps of its clock that are in no idle time (read_clock)
-- ARGV[11] when the group was made, as of the caller's last look (ms)
-- ARGV[12] longest visibility timeout that a job may ask for, in ms
-- ARGV[13] '1' = what workers that are not ours hold was delivered once, or as often as stands behind the entry ID (after a
--         space), however often Redis has counted it
-- ARGV[14] number of consumers that are at work on what they hold  ARGV[15…] for each of them its name, and up to which idle
--         time in ms what it holds is left alone; then entry IDs, ascending
--
-- Returns {'ok', row…}, one row an entry: {code, detail, idle ms, consumer, job ID, delivery count}, and
-- for a traced job {traceparent, tracestate, the delivery's name, what came before it}; behind that, where a job
-- asks for a visibility timeout longer than ARGV[12], what it asks for in ms
--   0 not pending any more   1 ready again, detail = new entry ID (in place: its own)   2 parked as suspect   3 dead letter,
--   detail = its ID   4 not due, detail = remaining ms   5 payload gone, acknowledged   6 cannot be copied, detail = why; stays pending
--   7 put off, ask again
-- or {'stale', fence found}, {'paused'}, {'late'}, {'refused', why}, {'made'} (the group is another one: what is not pending there
-- was not settled, but forgotten): nothing was done. Raises NOGROUP where the group is
-- gone. Late: a server that hung runs what had piled up, and everything looks idle then; the leader decides anew.
-- Fence: the whole value is compared; a missing fence is stale too (a paused leader must not find an open door).

--- @prelude

local source, stream, retry, dead, schedule = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local suspects, fence, agreement, journal, notes = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local own, group = ARGV[1], ARGV[2]
local visibility, max_deliveries, policy = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local write_journal, maxlen, token = ARGV[6] == '1', ARGV[7], ARGV[8]
local budget, longest = tonumber(ARGV[9]), tonumber(ARGV[12])
local by_sight = ARGV[13] == '1'
local first = 15
local spared = {}
for _ = 1, tonumber(ARGV[14]) do
  spared[ARGV[first]] = tonumber(ARGV[first + 1])
  first = first + 2
end
local items = #ARGV - first + 1

local GONE, NOT_DUE, PUT_OFF = 0, 4, 7 -- the others: recovery.lua

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
local at, not_after, steps = now_ms(), read_clock(ARGV[10])
if at > not_after then
  return { 'late' }
end
if whole_number(redis.call('HGET', agreement, 'made'), 0) > tonumber(ARGV[11]) then
  return { 'made' }
end
open_for_writing(source, group)
local refusal = layout_refusal(policy, stream, at)
if refusal then
  return { 'refused', refusal }
end
local bytes = 0
local terms_of = terms_by_consumer(agreement, visibility, max_deliveries, at)

local pending = read_ahead(function(entry_id, count)
  return redis.call('XPENDING', source, group, entry_id, '+', count)
end, 128)
local average = 0 -- payload bytes of an entry so far: large ones are not read ahead
local payload = read_ahead(function(entry_id, count)
  return redis.call('XRANGE', source, entry_id, '+', 'COUNT', average < 4096 and count or 1)
end, 64)

local head = '{"v":1,"group":' .. json_string(group) .. ',"mode":"reaper","token":' .. token .. ',"visibility_ms":'
  .. string.format('%d', visibility) .. ',"entry":"'
local how_it_ended = 'not settled within the visibility timeout'

--- @recovery

open_for_writing(source, group, true, has_notes and notes)

local function recover(entry_id, left, seen)
  local row = pending(entry_id, left)
  if not row then
    return { GONE }
  end
  local is_aside = row[2] == READY_CONSUMER or row[2] == WAITING_CONSUMER
  local is_fatal = row[4] >= MAX_SAFE_COUNT -- somebody says so
  if by_sight and not (in_place or is_aside or is_fatal) and not string.find(row[2], OUR_CONSUMER) then
    row[4] = math.min(row[4], seen)
  end
  row[3] = without_steps(row[3], at, steps)
  local consumer, idle, times = row[2], row[3], row[4]
  if idle >= 0 and idle < visibility then
    start_over(row)
    return { NOT_DUE, visibility - idle, idle, consumer, '', times }
  end
  local terms = terms_of(consumer)
  if idle >= 0 and idle < terms[1] then
    return { NOT_DUE, math.min(terms[1] - idle, math.max(terms[3] - at, 1)), idle, consumer, '', times }
  end
  if idle >= 0 and idle <= (spared[consumer] or -1) then
    return { NOT_DUE, visibility, idle, consumer, '', times }
  end
  max_deliveries = terms[2]
  local entry = payload(entry_id, left)
  if not entry then
    return lose(row)
  end
  local rest = result_of_rest(row, entry[2])
  if rest then
    return type(rest) == 'table' and rest or { NOT_DUE, visibility, 0, consumer, '', times }
  end
  local size, says = look_into(entry[2])
  bytes = bytes + size
  average = (average + size) / 2
  if not says and times < max_deliveries - 1 and not (has_notes and redis.call('HEXISTS', notes, entry_id) == 1) then
    return redeliver_plain(row, entry[2])
  end
  local job = open_noted(entry_id, entry[2])
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

local reply, recovered = { 'ok' }, 0
for i = 1, items do
  if bytes > budget then
    for rest = i, items do
      reply[rest + 1] = { PUT_OFF }
    end
    break
  end
  local entry_id, ok, row, seen = ARGV[first + i - 1], true, { GONE }, nil
  if entry_id ~= ARGV[first + i - 2] then -- given twice, it would be copied twice: it is acknowledged at the end only
    if by_sight then
      entry_id, seen = string.match(entry_id, '^(%S+) ?(%d*)')
    end
    ok, row = pcall(recover, entry_id, items - i + 1, tonumber(seen) or 1)
  end
  if not ok then
    local why = type(row) == 'table' and row.err or tostring(row)
    if string.find(why, 'NOGROUP', 1, true) then
      return redis.error_reply(string.match(why, 'NOGROUP.*'))
    end
    row = { HELD, why, 0, '', '', 0 }
  end
  reply[i + 1] = row
  if row[1] == REDELIVERED or row[1] == SUSPECTED then
    recovered = recovered + 1
  end
end
finish_all()
if recovered > 0 then
  redis.call('HINCRBY', agreement, 'recovered', recovered)
end
return reply
