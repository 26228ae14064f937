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

-- What a policy `in-place` has laid aside is nobody's delivery, and so is what anybody has given back by XNACK. It is left alone, or,
-- by another policy, made ready by a copy; what waits is kept young as long as the schedule has it (also where it was given back to wait
-- for whoever had it), and falls due as any delivery where that has lost it. So does what has had its deliveries by the count that an XNACK has left: nobody of ours judged that.
-- Returns its result, true where it rests, or nothing where `row` is to be treated as any.
local function result_of_rest(row, fields)
  if (row[2] == WAITING_CONSUMER or row[2] == RETURNED_CONSUMER) and redis.pcall('ZSCORE', schedule, member_of(source, stream, row[1])) then
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

local look_into
do
  local SAYS = { ['reaper.visibility_ms'] = true, traceparent = true }
  for name in pairs(REWRITTEN) do
    SAYS[name] = true
  end

  -- Returns the bytes of a payload, and whether it says anything about its job: then it must be opened.
  look_into = function(fields)
    local bytes, says = 0, false
    for i = 1, #fields, 2 do
      local name, value = fields[i], fields[i + 1]
      if SAYS[name] then
        says = says or name ~= 'traceparent' or is_sampled(value)
      end
      bytes = bytes + #name + #value
    end
    return bytes, says
  end
end

-- Those that were recovered of one consumer, with the same delivery count, are told in one entry of the journal: what they have in
-- common once, what differs in columns (events of many jobs, docs/protocol.md), or, where there is but one, as an event by itself.
-- `finish_all` tells what has gathered.
local pile_of, tell_plain
do
  local MOST_TOLD, TOLD_BYTES = 32, 1600
  local piles, all_piles = {}, {}
  local function new_pile(consumer, count)
    local pile = {
      n = 0, most = MOST_TOLD, entries = {}, idle = {}, ready = {}, count = small_digits(count),
      facts = '"consumer":' .. json_string(consumer) .. ',"delivery":' .. small_digits(count) .. ',"generation":0,',
      name = with_consumer({ consumers = '' }, consumer),
    }
    piles[consumer] = piles[consumer] or {}
    piles[consumer][count] = pile
    all_piles[#all_piles + 1] = pile
    return pile
  end

  local function tell_pile(pile)
    local n = pile.n
    pile.n = 0
    if n == 1 then
      local entry_id = pile.entries[1]
      return journal_event(journal, maxlen, 'recovered', entry_id, head .. entry_id .. '",' .. pile.facts .. '"enqueued_ms":'
        .. string.match(entry_id, '^%d+') .. ',"idle_ms":' .. pile.idle[1]
        .. ',"reason":"visibility_timeout","new_entry":"' .. pile.ready[1] .. '"}')
    elseif n > 1 then
      add_to_journal(journal, maxlen, 'event', 'recovered', 'data', '{"v":2,' .. common .. ',' .. pile.facts
        .. '"reason":"visibility_timeout","columns":{"entry":["' .. table.concat(pile.entries, '","', 1, n)
        .. '"],"idle_ms":[' .. table.concat(pile.idle, ',', 1, n)
        .. '],"new_entry":["' .. table.concat(pile.ready, '","', 1, n) .. '"]}}')
    end
  end

  tell_gathered = function()
    for i = 1, #all_piles do
      tell_pile(all_piles[i])
    end
  end

  -- Returns the pile of a row, which tells that it was recovered.
  pile_of = function(row)
    local by_count = piles[row[2]]
    return by_count and by_count[row[4]] or new_pile(row[2], row[4])
  end

  tell_plain = function(pile, row, new_entry)
    if write_journal then
      local n, idle = pile.n + 1, row[3]
      pile.n, pile.entries[n], pile.idle[n], pile.ready[n] = n, row[1], digits_of[idle] or small_digits(idle), new_entry
      if n == 1 then -- IDs of one call are of about the same length
        pile.most = math.min(MOST_TOLD, math.floor(TOLD_BYTES / (#row[1] + #new_entry + 10)))
      end
      if n >= pile.most then
        tell_pile(pile)
      end
    end
  end
end

-- Makes a plain job ready again, as `recover_job` does where deliveries are left, for less. Returns the ID of its next entry, or nil and why
-- it is held. Those that are ready where they are, are laid aside together by `finish_all`, but for the first one: what that has not failed
-- by, the others do not fail by.
local ready_plain
do
  local noted, n_noted, to_lay, counts, n_to_lay, is_proven = {}, 0, {}, {}, 0, false
  local function lay_plain(entry_id, pile)
    local note = '0,0,,,' .. pile.name
    if is_proven then
      noted[n_noted + 1], noted[n_noted + 2] = entry_id, note
      n_noted, n_to_lay = n_noted + 2, n_to_lay + 1
      to_lay[n_to_lay], counts[n_to_lay] = entry_id, pile.count
    else
      redis.call('HSET', notes, entry_id, note)
      lay_ready(source, group, { entry_id }, { pile.count })
      is_proven = true
    end
  end

  lay_gathered = function()
    for from = 1, n_noted, 1000 do
      redis.call('HSET', notes, unpack(noted, from, math.min(from + 999, n_noted)))
    end
    lay_ready(source, group, to_lay, counts)
  end

  local copy, n_copied = {}, -1 -- used again: most of a copy's words are those of the copy before it
  local target = policy == 'stream' and stream or retry
  local deletes = source == retry or policy == 'stream'
  ready_plain = function(row, fields, pile)
    local entry_id, n, new_entry = row[1], #fields, row[1]
    if in_place then
      lay_plain(entry_id, pile)
    elseif n + READY_FIELDS > MAX_UNPACKED then
      local job, why = open_entry(entry_id, fields), 'too many fields'
      new_entry = nil
      if may_be_ready(job, 0) then
        new_entry, why = add_entry(target, ready_fields(job, row[4], pile.name))
      end
      if not new_entry then
        return nil, why
      end
      finish(entry_id, deletes)
    else
      for i = 1, n do
        copy[i] = fields[i]
      end
      if n ~= n_copied then
        n_copied = n
        copy[n + 1], copy[n + 3], copy[n + 5], copy[n + 6] = 'reaper.job', 'reaper.deliveries', 'reaper.generation', '0'
        copy[n + 7], copy[n + 9], copy[n + 11], copy[n + 12] = 'reaper.first_ms', 'reaper.consumers', 'reaper.copies', '1'
      end
      copy[n + 2], copy[n + 4], copy[n + 8], copy[n + 10] = entry_id, pile.count, string.match(entry_id, '^%d+'), pile.name
      new_entry = try('XADD', target, '*', unpack(copy, 1, n + READY_FIELDS))
      if type(new_entry) == 'table' then
        return nil, new_entry.err
      end
      finish(entry_id, deletes)
    end
    tell_plain(pile, row, new_entry)
    return new_entry
  end
end
