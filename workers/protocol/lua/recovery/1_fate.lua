-- What becomes of an overdue delivery, whoever recovers it: the leader (recover_entries.lua) or a worker (autoclaim.lua).
-- Put in place of `--- @recovery` by workers/protocol/scripts.py. Above that line the script has named its keys (source,
-- stream, retry, dead, schedule, suspects, agreement, journal, notes), group, max_deliveries, policy, `at` (the server's time),
-- write_journal, maxlen, `how_it_ended` (for dead letters), and `common`: what the data of all its events have in common.

local REDELIVERED, SUSPECTED, DEAD, LOST, HELD = 1, 2, 3, 5, 6

-- Writes an event about a row of the pending entries list.
local head = '{"v":1,' .. common .. ',"entry":"'
local function event(name, job, row, count, tail)
  if write_journal then
    journal_event(journal, maxlen, name, job.job_id, head .. job.entry_id .. '","consumer":' .. json_string(row[2])
      .. ',"delivery":' .. small_digits(count) .. ',"generation":' .. job.generation .. ',"enqueued_ms":' .. job.first_ms
      .. ',"idle_ms":' .. small_digits(row[3]) .. tail .. '}')
  end
end

local in_place = policy == 'in-place'
local way = in_place and where_it_is(source, stream, group, schedule, notes) or by_copy(policy == 'stream' and stream or retry, schedule)
local has_notes = redis.pcall('EXISTS', notes) == 1

local function open_noted(entry_id, fields)
  local job = open_entry(entry_id, fields)
  return has_notes and with_note(job, redis.call('HGET', notes, entry_id)) or job
end

-- Tells whether there is a note of an entry, which is one of `rows`: asked for all of them at once.
local is_noted
do
  local known = {}
  is_noted = function(entry_id, rows)
    if has_notes and known[entry_id] == nil then
      local ids = {}
      for i = 1, #rows do
        ids[i] = rows[i][1]
      end
      for i, note in ipairs(redis.call('HMGET', notes, unpack(ids))) do
        known[ids[i]] = note ~= false
      end
    end
    return known[entry_id]
  end
end

local lay_gathered, tell_gathered -- below
-- Acknowledged and deleted together, once every copy of the batch is written.
local finish, finish_all
do
  local to_ack, to_delete, n_to_ack, n_to_delete = {}, {}, 0, 0
  finish = function(entry_id, delete)
    n_to_ack = n_to_ack + 1
    to_ack[n_to_ack] = entry_id
    if delete then
      n_to_delete = n_to_delete + 1
      to_delete[n_to_delete] = entry_id
    end
  end

  finish_all = function()
    lay_gathered()
    tell_gathered()
    for from = 1, has_notes and n_to_ack or 0, 1000 do
      redis.call('HDEL', notes, unpack(to_ack, from, math.min(from + 999, n_to_ack)))
    end
    for from = 1, n_to_ack, 1000 do
      redis.call('XACK', source, group, unpack(to_ack, from, math.min(from + 999, n_to_ack)))
    end
    for from = 1, n_to_delete, 1000 do
      redis.call('XDEL', source, unpack(to_delete, from, math.min(from + 999, n_to_delete)))
    end
  end
end

-- Gives up an entry whose payload somebody deleted. Returns its result, as `recover_job`.
local function lose(row)
  finish(row[1], false)
  count_lost_payload(agreement)
  event('lost_payload', { job_id = row[1], entry_id = row[1], generation = 0, first_ms = 0 }, row, row[4], '')
  return { LOST, '', row[3], row[2], row[1], row[4] }
end

local judge
do
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

  -- Returns how often the job was delivered and counted, and why its last delivery convicts nobody, where it does not: a suspect had
  -- company; or nobody had let it out (it failed before, and its worker gave it its last delivery; the limit was lowered, or somebody's
  -- read counted; the hash was lost, or a producer wrote the mark), so that nobody knows what company it had; or it was handed to a worker
  -- of ours that never showed that it got it, and may have been dead by then. Those of before show nothing: so twice. Where a job has one
  -- delivery, nobody is let out; and what somebody has given up by XNACK is not let out once more.
  judge = function(job, row)
    local count = delivery_count(job, row[4], max_deliveries)
    if row[2] == NOBODY or (not job.suspect and count < max_deliveries) then -- who has given it back did not crash
      return count, false
    end
    local value = redis.call('HGET', suspects, row[1])
    local may_be_let_out = job.suspect or (max_deliveries > 1 and count < MAX_SAFE_COUNT)
    local in_doubt = count >= max_deliveries and may_be_let_out and 'crashed_in_company'
    if value then
      local suspect = read_suspect(value)
      job.suspect = suspect.company
      in_doubt = crashed_in_company(row[1], row[2], value) and 'crashed_in_company'
        or suspect.company < 2 and suspect.arrived ~= row[4]
          and (row[2] == RETURNED_CONSUMER or string.find(row[2], OUR_CONSUMER)) and 'never_arrived'
    end
    if in_doubt then
      job.suspect = job.suspect and job.suspect + 1
      return math.min(count, max_deliveries - 1), count >= max_deliveries and in_doubt
    end
    return count, false
  end
end

local recover_job
do
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
    end
    event('recovered', job, row, count, ',"reason":"visibility_timeout","new_entry":"' .. id .. '"')
    return { REDELIVERED, id, idle, consumer, job.job_id, count }
  end

  -- The same; returns its result: {code, detail, idle ms, consumer, job ID, delivery count}, and for a traced job
  -- {traceparent, tracestate, the delivery's name, what came before it}.
  recover_job = function(job, row, count, in_doubt)
    local traced = job.traceparent and traced_delivery(job, row[4]) or nil
    leave_trace(job, row[4], 'r')
    local result = end_delivery(job, row, count, in_doubt)
    result[7] = traced
    return result
  end
end

