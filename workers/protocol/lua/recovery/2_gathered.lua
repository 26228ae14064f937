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
