-- pending -> done | ready | scheduled | dead: a worker settles many deliveries of one source in one call.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream the deliveries were read from
-- KEYS[2] stream     orders                              stream
-- KEYS[3] retry      {orders}:retry:billing              stream
-- KEYS[4] dead       {orders}:dead:billing               stream
-- KEYS[5] agreement  {orders}:group:billing              hash
-- KEYS[6] journal    {orders}:journal                    stream
-- KEYS[7] schedule   {orders}:scheduled:billing          sorted set
-- KEYS[8] suspects   {orders}:suspects:billing           hash: suspects that are out. May be left out: a suspect that is
--                                                        given back is then ready at once, and still bears its mark
-- KEYS[9] notes      {orders}:notes:billing              hash: of what is given back where it is (prelude). May be left out:
--                                                        what is given back is then copied, by policy in-place as well
-- ARGV[1] group  ARGV[2] consumer (of every item)
-- ARGV[3] max_deliveries and ARGV[4] policy, where the group has agreed on none; after a change to a lower limit
--         the former one counts for a while (prelude)
-- ARGV[5] journal: '1' = write events  ARGV[6] journal's MAXLEN
-- ARGV[7] '1' = an earlier call with these items lost its reply: an item that is no longer pending may be our own work
-- ARGV[8] '1' = delete acknowledged entries of the stream (single group only; the owner's opt-in)
-- ARGV[9…] runs of items that have verb and PEL delivery count in common, mostly one run: verb, count (and behind commas
--          when all of them were proven alive last, and until when that counts, see hold_again.lua; and then `,lost`, where the worker
--          knows that their payloads are gone), number of items, and
--          per item: entry ID, job ID, data (JSON of the event), and unless the verb is ack: reason, error,
--          delay in ms ('' or 0 = ready at once), traceback (for a dead letter; '' = none).
--          Verb acks: data of all (JSON of version 2, a row an item), and per item: entry ID
-- Cheapest for the server where entry IDs ascend.
--
-- Verbs: ack | acks (many of them, which the journal has as one entry) | nack (FAIL: counts; with a delay it is scheduled) | retry (SILENT: as nack, does not count) | hand_back
-- (SILENT: ready at once, as if it had not been delivered; with a reason its handler had begun, which `reaper.hand_backs` counts) | reject (FATAL: dead letter now).
-- A job on probation (`reaper.suspect`) that is given back is parked again, to be let out by release_suspects.lua: at the end
-- of the row, or, handed back, in front. Where nobody lets suspects out it is ready as any job, and known to be out.
--
-- Returns the number of items where every one was acknowledged, else an array of one result an item: 1 done (acked, made ready
-- again, or scheduled), {2, dead letter's ID} dead-lettered, 0 refused (the delivery is not ours any more), 3 unknown (not
-- pending, an earlier reply was lost, and neither its entry nor the journal shows that nothing was done), {4, why} held (could not be copied: several_groups | explicit_ids | an error's text;
-- stays pending), 6 lost: given back, and its payload was deleted, so it cannot be run again; 5 to be asked
-- again: not pending for us, and the call came too late to be believed; or a read has just taken it, as the clock was set back,
-- and will give it back (is_taken).
-- Raises NOGROUP where the group is gone.
-- Fence: the entry is pending for this consumer *and* with this delivery count. XACK alone is no owner check. Only an entry that
-- somebody deleted together with its reference is settled without (is_deleted): nobody else can run it.

local source, stream, retry, dead, agreement, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local schedule, suspects, notes = KEYS[7], KEYS[8], KEYS[9]
local group, consumer = ARGV[1], ARGV[2]
local write_journal, maxlen = ARGV[5] == '1', ARGV[6]
local has_notes = notes and redis.pcall('EXISTS', notes) == 1
local reply_was_lost = ARGV[7] == '1'
-- Entries of the stream belong to every group that reads it: one that was added later must still see them.
local delete_acked = source == retry or (ARGV[8] == '1' and #redis.call('XINFO', 'GROUPS', stream) == 1)

local FIRST_RUN, RUN_HEAD, ACK_WORDS, OTHER_WORDS = 9, 3, 3, 7
local MANY_HEAD, MANY_WORDS = 4, 1
local MOST_AT_ONCE = 1000 -- IDs in a command: unpack() has its limit
local words = ARGV -- a local name is reached faster, and this is done for every job

local function acknowledge(ids, first, last)
  redis.call('XACK', source, group, unpack(ids, first, last))
  if has_notes then
    redis.call('HDEL', notes, unpack(ids, first, last))
  end
  if delete_acked then
    redis.call('XDEL', source, unpack(ids, first, last))
  end
end

-- Nearly every call says of deliveries that are ours that they are done, and nothing else. It ends here, before there is a prelude: to
-- make all those functions, and to note what each item comes to, takes as long again. A call that is not so is left as it is. The first
-- write is an acknowledgement, which needs no memory. Returns the number of items, or nil.
local settle_plain_acks
do
  local MOST_ROWS = 512 -- with others of ours between them; where more lie there, each is looked for (below)

  local function plain_runs()
    local runs, number, run = {}, 0, FIRST_RUN
    while words[run] do
      local n, is_many = tonumber(words[run + 2]), words[run] == 'acks'
      if n < 1 or n > MOST_AT_ONCE or not (is_many or (words[run] == 'ack' and n == 1)) then
        return nil
      end
      local first = run + (is_many and MANY_HEAD or RUN_HEAD)
      runs[#runs + 1] = { first = first, last = first + n - 1, is_many = is_many, times = tonumber(string.match(words[run + 1], '^%d+')) }
      number, run = number + n, first + (is_many and n or ACK_WORDS)
    end
    return runs, number
  end

  -- Onwards only, since an item may come twice. Each time for twice as many rows.
  local function are_ours(runs, number)
    local rows, ahead, look = redis.call('XPENDING', source, group, words[runs[1].first], '+', number, consumer), 0, number
    for _, run in ipairs(runs) do
      local times = run.times
      for i = run.first, run.last do
        local entry_id, row = words[i], nil
        repeat
          ahead = ahead + 1
          row = rows[ahead]
          if not row and rows[1] and look < MOST_ROWS then
            look = 2 * look
            rows, ahead = redis.call('XPENDING', source, group, '(' .. rows[ahead - 1][1], '+', look, consumer), 1
            row = rows[1]
          end
        until not row or row[1] == entry_id
        if not row or row[4] ~= times then
          return false
        end
      end
    end
    return true
  end

  settle_plain_acks = function()
    local runs, number = plain_runs()
    if not runs or not runs[1] or not are_ours(runs, number) then
      return nil
    end
    for _, run in ipairs(runs) do
      acknowledge(words, run.first, run.last)
    end
    for _, run in ipairs(write_journal and runs or {}) do
      local first = run.first
      if run.is_many then
        redis.pcall('XADD', journal, 'MAXLEN', '~', maxlen, '*', 'event', 'acked', 'data', words[first - 1])
      else
        redis.pcall('XADD', journal, 'MAXLEN', '~', maxlen, '*', 'event', 'acked', 'job', words[first + 1], 'data', words[first + 2])
      end
    end
    return number
  end
end

local n_settled = settle_plain_acks()
if n_settled then
  return n_settled
end

--- @prelude

local DONE, DEAD, REFUSED, UNKNOWN, HELD, LATE, LOST = 1, 2, 0, 3, 4, 5, 6
local MOST_ROWS = 128
local LONGEST_DELAY_MS = 316224000000 -- ten years: far below the scores of suspects

local ids, n_acked = {}, 0 -- what is acknowledged in the end: entry IDs
local told = {} -- what the journal has of these: where an item's words are, or {where the data of many are, what it ends with}

local function width_of(verb)
  return verb == 'acks' and MANY_WORDS or verb == 'ack' and ACK_WORDS or OTHER_WORDS
end

local function head_of(verb)
  return verb == 'acks' and MANY_HEAD or RUN_HEAD
end

local function number_of_items()
  local number, at = 0, FIRST_RUN
  while words[at] do
    number = number + words[at + 2]
    at = at + head_of(words[at]) + words[at + 2] * width_of(words[at])
  end
  return number
end

-- Who owns what: one XPENDING over a run of neighbours serves many items, since a worker's deliveries lie together and items
-- ascend. Each asks for up to twice as many rows as the one before was good for. Returns the delivery count, or nil.
local rows, ahead, used, look = {}, 1, 0, math.max(1, math.min(number_of_items(), MOST_ROWS))
local is_acked, n_noted = {}, 0 -- not pending any more, although XPENDING says so: an item may come twice
local function pending(entry_id)
  local row = rows[ahead]
  while row and row[1] ~= entry_id do
    ahead = ahead + 1
    row = rows[ahead]
  end
  if not row then
    if rows[1] then
      look = math.max(1, math.min(2 * used, MOST_ROWS))
    end
    for i = n_noted + 1, n_acked do
      is_acked[ids[i]] = true
    end
    n_noted = n_acked
    rows, ahead, used = redis.call('XPENDING', source, group, entry_id, '+', look, consumer), 1, 0
    row = rows[1]
    if not row or row[1] ~= entry_id then
      return nil
    end
  end
  ahead, used = ahead + 1, used + 1
  return not is_acked[entry_id] and row[4] or nil
end

-- Writes the event of many items whose data is at `words[at]`; `rows` are those that it befell, counted from 0 (nil = all).
local function event_of_many(name, at, rows, tail)
  if rows then
    tail = tail .. ',"rows":[' .. table.concat(rows, ',') .. ']'
  end
  add_to_journal(journal, maxlen, 'event', name, 'data', string.sub(words[at], 1, -2) .. tail .. '}')
end

-- Writes the event of an item whose data is at `words[at]`, its job ID before it; `tail` is what the script knows.
local function event(name, at, tail)
  if write_journal then
    journal_event(journal, maxlen, name, words[at - 1], string.sub(words[at], 1, -2) .. tail .. '}')
  end
end

open_for_writing(source, group)

local policy, max_deliveries, at, gate
local function agreed()
  if not policy then
    local values = redis.call('HMGET', agreement, 'policy', 'max_deliveries', 'recovery', 'served_until')
    policy = values[1] or ARGV[4]
    at = now_ms()
    max_deliveries = math.max(1, whole_number(values[2], tonumber(ARGV[3])))
    max_deliveries = select(2, group_terms(agreement, 0, max_deliveries, at))
    gate = suspects and has_gate(values[3], values[4], at)
    open_for_writing(source, group, true, has_notes and notes)
  end
end

local left = {} -- by this call: an item may come twice, and the entry may still be there
local function remove(entry_id, delete)
  left[entry_id] = true
  redis.call('XACK', source, group, entry_id)
  if has_notes then
    redis.call('HDEL', notes, entry_id)
  end
  if delete then
    redis.call('XDEL', source, entry_id)
  end
end

local function is_counted(verb)
  return verb == 'nack' or verb == 'reject'
end

-- What the hash says of a suspect that ends here, or nothing where it is not known there.
local function suspect_out(entry_id)
  local value = suspects and redis.pcall('HGET', suspects, entry_id)
  return type(value) == 'string' and read_suspect(value) or nil
end

-- A suspect has left its entry, or waits there: what vanishes from the pending entries list by itself is taken for settled.
local function suspect_moved(entry_id, new_entry, target, known)
  redis.pcall('HDEL', suspects, entry_id)
  if new_entry then
    redis.pcall('HSET', suspects, new_entry, string.format('%s,%.0f', target == retry and 'retry' or 'stream', known))
  end
end

-- Has the job become ready in this `way`: now, once its delay has passed, or, a suspect, when it is let out. `target`: the stream
-- of its next entry. Returns the event's tail, or nil and why.
local function make_ready_again(item, job, count, way, target)
  local verb, waits, hand_backs, tail = item.verb, 0, 0, ''
  if verb == 'retry' then
    waits, tail = job.waits + 1, ',"counts":false'
  elseif verb == 'hand_back' then
    waits = job.waits
    hand_backs = (job.hand_backs or 0) + (item.reason ~= '' and 1 or 0)
  elseif item.reason ~= 'max_deliveries' then
    tail = ',"reason":' .. json_string(item.reason)
  end
  job.hand_backs = hand_backs
  local deliveries = is_counted(verb) and count or math.min(count, max_deliveries) - 1
  local consumers = with_consumer(job, consumer)
  local delay = verb ~= 'hand_back' and math.min(whole_number(item.delay, 0), LONGEST_DELAY_MS) or 0
  local out = job.suspect and suspect_out(item.entry_id)
  if out then
    job.suspect = out.company + (out.crashed and 1 or 0)
  end
  if delay == 0 and not (job.suspect and gate) then
    local id, why = way.ready(job, item.times, deliveries, consumers, waits)
    if id and out then
      suspect_moved(item.entry_id, id, target, job.suspect)
    end
    return id and tail .. ',"new_entry":' .. json_string(id), why
  end
  local ok, why
  if delay > 0 then
    ok, why = way.wait(job, item.times, deliveries, consumers, waits, at + delay)
  else
    ok, why = way.park(job, item.times, deliveries, consumers, waits, verb == 'hand_back' and SUSPECT_SCORE or SUSPECT_SCORE + at)
  end
  if ok and out then
    suspect_moved(item.entry_id)
  end
  if not way.is_copied then
    tail = tail .. ',"new_entry":"' .. item.entry_id .. '"'
  end
  return ok and tail .. string.format(',"due_ms":%.0f', at + delay), why
end

-- Everything but an ack needs the payload. Returns a result.
local function give_up_or_redeliver(item)
  agreed()
  local entry_id, verb = item.entry_id, item.verb
  local entry = redis.call('XRANGE', source, entry_id, entry_id)[1]
  if not entry then
    remove(entry_id, false)
    if not item.is_reported then
      count_lost_payload(agreement)
      event('lost_payload', item.data, '')
    end
    return LOST
  end
  local job = open_entry(entry_id, entry[2])
  job = has_notes and with_note(job, redis.call('HGET', notes, entry_id)) or job
  local count = delivery_count(job, item.times, max_deliveries)
  if verb ~= 'hand_back' then -- which may not have started
    leave_trace(job, item.times, 's')
  end
  if verb == 'reject' or (verb == 'nack' and count >= max_deliveries) then
    local id, why = add_entry(dead, dead_letter_fields(job, {
      stream = stream, group = group, reason = item.reason, error = item.error,
      deliveries = count, consumers = with_consumer(job, consumer), last_ms = at, at_ms = at,
      traceback = item.traceback,
    }))
    if not id then
      return { HELD, why }
    end
    remove(entry_id, source == retry)
    event('dead_lettered', item.data, ',"dead_letter":' .. json_string(id) .. ',"reason":' .. json_string(item.reason))
    return { DEAD, id }
  end
  local target, refusal, way = source, nil, nil
  if policy == 'in-place' and notes then
    way = where_it_is(source, stream, group, schedule, notes)
  else
    if source ~= retry then
      target, refusal = copy_target(policy, stream, retry, at)
    end
    if refusal then
      return { HELD, refusal }
    end
    way = by_copy(target, schedule)
  end
  local tail, why = make_ready_again(item, job, count, way, target)
  if not tail then
    return { HELD, why }
  end
  if way.is_copied then
    remove(entry_id, target == source)
  else
    left[entry_id] = true
  end
  event(verb == 'hand_back' and 'handed_back' or 'nacked', item.data, tail)
  return DONE
end

local function is_unknown(entry_id, times)
  local row = reply_was_lost and redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1]
  -- Given back where it was, it is pending for us, or for whoever came next.
  return reply_was_lost and (not row or laid_aside_as(row[2]) or (notes and row[4] > times))
end

-- Tells whether an entry that is still there says that no earlier call has settled it by this verdict, since that would have
-- deleted it. What was agreed on since the delivery was proven alive may have been otherwise when that call ran.
local function is_witness(entry_id, verb, times, proven)
  if verb == 'ack' or verb == 'acks' then
    return delete_acked
  end
  agreed()
  if (policy == 'in-place' and notes) or whole_number(redis.call('HGET', agreement, 'version'), 0) >= (proven or 0) then
    return false
  elseif source == retry or verb ~= 'nack' then
    return source == retry or (policy == 'stream' and verb ~= 'reject')
  end
  local entry = redis.call('XRANGE', source, entry_id, entry_id)[1] -- its dead letter would have left it
  return policy == 'stream' and entry and delivery_count(open_entry(entry_id, entry[2]), times, max_deliveries) < max_deliveries
end

-- Tells whether the journal says that no earlier call has settled an entry: it reaches back to when that was proven alive, and tells of
-- no end of it since. Of what was given back by a copy nothing else may be left.
local function journal_denies(entry_id, proven)
  return write_journal and proven and told_end(journal, group, entry_id, proven) == 'open'
end

-- What somebody else made vanish while it ran is settled as if nothing had happened.
local function taken_back(entry_id, verb, times, proven)
  if left[entry_id] then
    return false
  elseif not has_vanished(source, stream, group, agreement, consumer, entry_id, times, proven, journal) then
    return false
  elseif reply_was_lost and not is_witness(entry_id, verb, times, proven) and not journal_denies(entry_id, proven) then -- what is gone may have been settled…
    if not was_returned(redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1], times) then -- … what was returned was not
      return false
    end
  end
  hold_again(source, group, consumer, entry_id, times)
  return true
end

local results, n_items = {}, 0

-- Which of `n` items behind the first `before` were acknowledged, counted from 0.
local function done_rows(before, n)
  local rows = {}
  for row = 0, n - 1 do
    if results[before + row + 1] == DONE then
      rows[#rows + 1] = row
    end
  end
  return rows
end

local run = FIRST_RUN
while words[run] do
  local verb, n = words[run], tonumber(words[run + 2])
  local times, proven, is_late, is_known_lost = read_count(words[run + 1])
  local is_many = verb == 'acks'
  local is_ack = is_many or verb == 'ack'
  local width = width_of(verb)
  local first = run + head_of(verb)
  local data, refused, before, acked_before = first - 1, {}, n_items, n_acked
  run = first + n * width
  for i = first, run - 1, width do
    local entry_id = words[i]
    n_items = n_items + 1
    local is_ours, is_gone = pending(entry_id) == times, false
    if not is_ours then
      is_ours = taken_back(entry_id, verb, times, proven)
    end
    if not is_ours and not left[entry_id] and not reply_was_lost then -- else an earlier call may have deleted it, behind a copy
      is_gone = is_deleted(source, group, agreement, consumer, entry_id, proven)
    end
    if not is_ours and not is_gone then
      if is_unknown(entry_id, times) then
        results[n_items] = UNKNOWN
      elseif (is_late and not pending(entry_id)) or is_taken(source, group, agreement, consumer, entry_id, times, proven) then
        results[n_items] = LATE
      else
        results[n_items] = REFUSED
        if is_many then
          refused[#refused + 1] = i - first
        else
          event('refused', i + 2, ',"verb":' .. json_string(verb))
        end
      end
    elseif is_ack then
      n_acked = n_acked + 1
      ids[n_acked] = entry_id
      results[n_items] = DONE
      if not is_many then
        told[#told + 1] = i
      end
    else
      results[n_items] = give_up_or_redeliver({
        entry_id = entry_id, verb = verb, times = times, data = i + 2, reason = words[i + 3], error = words[i + 4],
        delay = words[i + 5], traceback = words[i + 6], is_reported = is_gone and is_known_lost,
      })
    end
  end
  if is_many and write_journal then
    told[#told + 1] = { data, n_acked - acked_before < n and done_rows(before, n) or nil }
    if refused[1] then
      event_of_many('refused', data, refused, ',"verb":"ack"')
    end
  end
end

for first = 1, n_acked, MOST_AT_ONCE do
  acknowledge(ids, first, math.min(first + MOST_AT_ONCE - 1, n_acked))
end
if write_journal then
  for _, item in ipairs(told) do
    if type(item) == 'number' then
      journal_event(journal, maxlen, 'acked', words[item + 1], words[item + 2])
    elseif not item[2] or item[2][1] then
      event_of_many('acked', item[1], item[2], '')
    end
  end
end
return n_acked == n_items and n_items or results
