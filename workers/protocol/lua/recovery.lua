-- What becomes of an overdue delivery, whoever recovers it: the leader (recover_entries.lua) or a worker (autoclaim.lua).
-- Put in place of `--- @recovery` by workers/protocol/scripts.py. Above that line the script has named its keys (source,
-- stream, retry, dead, schedule, suspects, agreement, journal, notes), group, max_deliveries, policy, `at` (the server's time),
-- write_journal, maxlen, `how_it_ended` (for dead letters), and `head`: how the data of its events begin, up to the entry ID.

local REDELIVERED, SUSPECTED, DEAD, LOST, HELD = 1, 2, 3, 5, 6

-- A delivery of the future: handed out before the server's clock was set back. Redis says idle 0, and would until the clock
-- has caught up. So what is idle for 0 starts over now, which changes nothing where that is true. A payload that is gone is
-- left alone: from 7.0 on XCLAIM would drop it unseen.
local function start_over(row)
  if row[3] == 0 and #redis.call('XRANGE', source, row[1], row[1]) > 0 then
    redis.call('XCLAIM', source, group, row[2], 0, row[1], 'JUSTID')
  end
end

-- Writes an event about a row of the pending entries list.
local function event(name, job, row, count, tail)
  if write_journal then
    journal_event(journal, maxlen, name, job.job_id, head .. job.entry_id .. '","consumer":' .. json_string(row[2])
      .. ',"delivery":' .. small_digits(count) .. ',"generation":' .. job.generation .. ',"enqueued_ms":' .. job.first_ms
      .. ',"idle_ms":' .. small_digits(row[3]) .. tail .. '}')
  end
end

-- Acknowledged and deleted together, once every copy of the batch is written.
local to_ack, to_delete = {}, {}
local function finish(entry_id, delete)
  to_ack[#to_ack + 1] = entry_id
  if delete then
    to_delete[#to_delete + 1] = entry_id
  end
end

local in_place = policy == 'in-place'
local way = in_place and where_it_is(source, stream, group, schedule, notes) or by_copy(policy == 'stream' and stream or retry, schedule)
local has_notes = redis.pcall('EXISTS', notes) == 1
local is_any_ready_there = false

local function open_noted(entry_id, fields)
  local job = open_entry(entry_id, fields)
  return has_notes and with_note(job, redis.call('HGET', notes, entry_id)) or job
end

local function finish_all()
  if is_any_ready_there then
    wake_readers(notes)
  end
  for from = 1, has_notes and #to_ack or 0, 1000 do
    redis.call('HDEL', notes, unpack(to_ack, from, math.min(from + 999, #to_ack)))
  end
  for from = 1, #to_ack, 1000 do
    redis.call('XACK', source, group, unpack(to_ack, from, math.min(from + 999, #to_ack)))
  end
  for from = 1, #to_delete, 1000 do
    redis.call('XDEL', source, unpack(to_delete, from, math.min(from + 999, #to_delete)))
  end
end

-- A released suspect that crashed together with another one on the same consumer may be the innocent of the two: nobody
-- is convicted; both are parked again, uncounted, in front, and run alone. Marks the others, which may fall due later.
-- `value` is what the hash says of it.
local function crashed_in_company(entry_id, consumer, value)
  local company = read_suspect(value).crashed
  local released = redis.call('HGETALL', suspects)
  for i = 1, #released, 2 do
    if released[i] ~= entry_id then
      local suspect = read_suspect(released[i + 1])
      local key = suspect.kind == 'retry' and retry or stream
      local other = redis.pcall('XPENDING', key, group, released[i], released[i], 1)[1]
      if other and other[2] == consumer then
        company = true
        if not suspect.crashed then
          redis.call('HSET', suspects, released[i], released[i + 1] .. '!')
        end
      end
    end
  end
  redis.call('HSET', agreement, 'suspects_settled', '0')
  return company
end

-- Gives up an entry whose payload somebody deleted. Returns its result, as `recover_job`.
local function lose(row)
  finish(row[1], false)
  event('lost_payload', { job_id = row[1], entry_id = row[1], generation = 0, first_ms = 0 }, row, row[4], '')
  return { LOST, '', row[3], row[2], row[1], row[4] }
end

-- Returns how often the job was delivered and counted, and why its last delivery convicts nobody, where it does not: a suspect had
-- company, or nobody let it out (the hash was lost, or a producer wrote the mark), so that nobody knows what company it had; or it was
-- handed to a worker of ours that never showed that it got it, and may have been dead by then. Those of before show nothing: so twice.
local function judge(job, row)
  local count = delivery_count(job, row[4], max_deliveries)
  if row[2] == NOBODY or (not job.suspect and count < max_deliveries) then -- who has given it back did not crash
    return count, false
  end
  local value = redis.call('HGET', suspects, row[1])
  local in_doubt = job.suspect and count >= max_deliveries and 'crashed_in_company'
  if value then
    local suspect = read_suspect(value)
    job.suspect = suspect.company
    in_doubt = crashed_in_company(row[1], row[2], value) and 'crashed_in_company'
      or suspect.company < 2 and suspect.arrived ~= row[4]
        and (row[2] == RETURNED_CONSUMER or string.find(row[2], OUR_CONSUMER)) and 'never_arrived'
  end
  if in_doubt then
    job.suspect = job.suspect + 1
    return math.min(count, max_deliveries - 1), count >= max_deliveries and in_doubt
  end
  return count, false
end

-- Ends an overdue delivery that has been judged: dead letter, parked suspect, or ready again by a copy.
local function end_delivery(job, row, count, in_doubt)
  local entry_id, consumer, idle = row[1], row[2], row[3]
  local consumers = with_consumer(job, consumer)
  if count >= max_deliveries then
    redis.call('HDEL', suspects, '') -- harmless: see open_for_writing
    local id, why = add_entry(dead, dead_letter_fields(job, {
      stream = stream, group = group, reason = 'max_deliveries', deliveries = count, consumers = consumers,
      error = consumer == NOBODY and 'given back by XNACK' or how_it_ended, last_ms = at - math.max(idle, 0), at_ms = at,
    }))
    if not id then
      return { HELD, why, idle, consumer, job.job_id, count }
    end
    redis.call('HDEL', suspects, entry_id)
    finish(entry_id, source == retry)
    event('dead_lettered', job, row, count, ',"reason":"max_deliveries","dead_letter":"' .. id .. '"')
    return { DEAD, id, idle, consumer, job.job_id, count }
  end

  if job.suspect or count == max_deliveries - 1 then
    local was_out = job.suspect ~= nil
    if job.suspect then
      redis.call('HDEL', suspects, '')
    end
    local score = (job.suspect or 0) > 0 and SUSPECT_SCORE or SUSPECT_SCORE + at
    local ok, why = way.park(job, row[4], count, consumers, nil, score)
    if not ok then
      return { HELD, why, idle, consumer, job.job_id, count }
    end
    if was_out then -- else release_suspects.lua would take it for settled
      redis.call('HDEL', suspects, entry_id)
    end
    if way.is_copied then
      finish(entry_id, source == retry or policy == 'stream')
    end
    event('suspected', job, row, count, ',"reason":"' .. (in_doubt or 'last_delivery') .. '"'
      .. (way.is_copied and '' or ',"new_entry":"' .. entry_id .. '"'))
    return { SUSPECTED, '', idle, consumer, job.job_id, count }
  end

  local id, why = way.ready(job, row[4], count, consumers)
  if not id then
    return { HELD, why, idle, consumer, job.job_id, count }
  end
  if way.is_copied then
    finish(entry_id, source == retry or policy == 'stream')
  else
    is_any_ready_there = true
  end
  event('recovered', job, row, count, ',"reason":"visibility_timeout","new_entry":"' .. id .. '"')
  return { REDELIVERED, id, idle, consumer, job.job_id, count }
end

-- The same; returns its result: {code, detail, idle ms, consumer, job ID, delivery count}, and for a traced job
-- {traceparent, tracestate, the delivery's name, what came before it}.
local function recover_job(job, row, count, in_doubt)
  local traced = job.traceparent and traced_delivery(job, row[4]) or nil
  leave_trace(job, row[4], 'r')
  local result = end_delivery(job, row, count, in_doubt)
  result[7] = traced
  return result
end

-- What a policy `in-place` has laid aside is nobody's delivery, and so is what anybody has given back by XNACK. It is left alone, or,
-- by another policy, made ready by a copy; what waits is kept young as long as the schedule has it, and falls due as any delivery
-- where that has lost it. So does what has had its deliveries by the count that an XNACK has left: nobody of ours judged that.
-- Returns its result, true where it rests, or nothing where `row` is to be treated as any.
local function result_of_rest(row, fields)
  if row[2] == WAITING_CONSUMER and redis.pcall('ZSCORE', schedule, member_of(source, stream, row[1])) then
    lay_aside(source, group, WAITING_CONSUMER, row[1], row[4])
    return true
  elseif laid_aside_as(row[2]) ~= 'ready' then
    return nil
  end
  local job = (row[2] == NOBODY or not in_place) and open_noted(row[1], fields)
  if row[2] == NOBODY and delivery_count(job, row[4], max_deliveries) >= max_deliveries then
    return nil
  elseif in_place then
    return true
  end
  local count, out = job.deliveries + row[4], redis.pcall('HGET', suspects, row[1])
  if type(out) == 'string' then -- harmless: see open_for_writing
    redis.call('HDEL', suspects, '')
    redis.call('HSET', suspects, row[1], out)
  end
  local id, why = way.ready(job, row[4], count, job.consumers, job.waits)
  if not id then
    return { HELD, why, -1, row[2], job.job_id, count }
  end
  if type(out) == 'string' then -- it is out still, by another entry
    redis.call('HDEL', suspects, row[1])
    redis.call('HSET', suspects, id, string.format('%s,%.0f', policy == 'stream' and 'stream' or 'retry', read_suspect(out).company))
  end
  finish(row[1], source == retry or policy == 'stream')
  row[3] = -1
  event('recovered', job, row, count, (row[2] == NOBODY and ',"reason":"given_back"' or ',"reason":"policy"') .. ',"new_entry":"' .. id .. '"')
  return { REDELIVERED, id, -1, row[2], job.job_id, count }
end

-- What follows is for plain jobs: a producer's own entry, all of whose fields are the user's. In a mass they are most, and
-- opening them costs more than all the rest.

-- Returns the bytes of a payload, and whether it says anything about its job: then it must be opened.
local function look_into(fields)
  local bytes, says = 0, false
  for i = 1, #fields, 2 do
    local name = fields[i]
    says = says or REWRITTEN[name] or name == 'reaper.visibility_ms' or (name == 'traceparent' and is_sampled(fields[i + 1]))
    bytes = bytes + #name + #fields[i + 1]
  end
  return bytes, says
end

local middles = {} -- of their events, by consumer and delivery count: all but what differs from job to job
local function middle_of(consumer, count)
  local by_count = middles[consumer] or {}
  middles[consumer] = by_count
  by_count[count] = by_count[count] or '","consumer":' .. json_string(consumer) .. ',"delivery":' .. small_digits(count)
    .. ',"generation":0,"enqueued_ms":'
  return by_count[count]
end

local function tell_plain_recovered(row, first_ms, new_entry)
  if write_journal then
    local by_count = middles[row[2]]
    journal_event(journal, maxlen, 'recovered', row[1], head .. row[1] .. (by_count and by_count[row[4]]
      or middle_of(row[2], row[4])) .. first_ms .. ',"idle_ms":' .. small_digits(row[3])
      .. ',"reason":"visibility_timeout","new_entry":"' .. new_entry .. '"}')
  end
end

-- Makes a plain job ready again by a copy, as `recover_job` does where deliveries are left. Returns its result.
local copy, n_copied = {}, -1 -- used again: most of a copy's words are those of the copy before it
local function redeliver_plain(row, fields)
  local entry_id, consumer, n = row[1], row[2], #fields
  if in_place then
    redis.call('HSET', notes, entry_id, '0,0,,,' .. with_consumer({ consumers = '' }, consumer))
    lay_aside(source, group, READY_CONSUMER, entry_id, row[4])
    is_any_ready_there = true
    tell_plain_recovered(row, string.match(entry_id, '^%d+'), entry_id)
    return { REDELIVERED, entry_id, row[3], consumer, entry_id, row[4] }
  end
  if n + READY_FIELDS > MAX_ARGUMENTS then
    return { HELD, 'too many fields', row[3], consumer, entry_id, row[4] }
  end
  for i = 1, n do
    copy[i] = fields[i]
  end
  if n ~= n_copied then
    n_copied = n
    copy[n + 1], copy[n + 3], copy[n + 5], copy[n + 6] = 'reaper.job', 'reaper.deliveries', 'reaper.generation', '0'
    copy[n + 7], copy[n + 9], copy[n + 11], copy[n + 12] = 'reaper.first_ms', 'reaper.consumers', 'reaper.copies', '1'
  end
  local first_ms = string.match(entry_id, '^%d+')
  copy[n + 2], copy[n + 4], copy[n + 8] = entry_id, small_digits(row[4]), first_ms
  copy[n + 10] = printable[consumer] or with_consumer({ consumers = '' }, consumer)
  local new_entry = try('XADD', policy == 'stream' and stream or retry, '*', unpack(copy, 1, n + READY_FIELDS))
  if type(new_entry) == 'table' then
    return { HELD, new_entry.err, row[3], consumer, entry_id, row[4] }
  end
  finish(entry_id, source == retry or policy == 'stream')
  tell_plain_recovered(row, first_ms, new_entry)
  return { REDELIVERED, new_entry, row[3], consumer, entry_id, row[4] }
end
