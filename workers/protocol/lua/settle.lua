-- pending -> done | ready | scheduled | dead: a worker settles many deliveries of one source in one call.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream the deliveries were read from
-- KEYS[2] stream     orders                              stream
-- KEYS[3] retry      {orders}:retry:billing              stream
-- KEYS[4] dead       {orders}:dead:billing               stream
-- KEYS[5] agreement  {orders}:group:billing              hash
-- KEYS[6] journal    {orders}:journal                    stream
-- KEYS[7] schedule   {orders}:scheduled:billing          sorted set
-- ARGV[1] group  ARGV[2] consumer (of every item)
-- ARGV[3] max_deliveries and ARGV[4] policy, where the group has agreed on none
-- ARGV[5] journal: '1' = write events  ARGV[6] journal's MAXLEN
-- ARGV[7] '1' = an earlier call with these items lost its reply: an item that is no longer pending may be our own work
-- ARGV[8] '1' = delete acknowledged entries of the stream (single group only; the owner's opt-in)
-- ARGV[9…] per item: entry ID, PEL delivery count, verb, job ID, reason, error, data (JSON of the event, without its
--          closing brace), delay in ms ('' or 0 = ready at once), traceback (for a dead letter; '' = none)
--
-- Verbs: ack | nack (FAIL: counts; with a delay it is scheduled) | retry (SILENT: as nack, does not count) | hand_back
-- (SILENT: ready at once, as if it had not been delivered) | reject (FATAL: dead letter now).
--
-- Returns one result an item: 1 done (acked, made ready again, or scheduled), {2, dead letter's ID} dead-lettered, 0 refused (the
-- delivery is not ours any more), 3 unknown (not pending, and an earlier reply was lost), {4, why} held (could not be
-- copied: several_groups | explicit_ids | an error's text; stays pending).
-- Raises NOGROUP where the group is gone.
-- Fence: the entry is pending for this consumer *and* with this delivery count. XACK alone is no owner check.

--- @prelude

local source, stream, retry, dead, agreement, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local schedule = KEYS[7]
local group, consumer = ARGV[1], ARGV[2]
local write_journal, maxlen = ARGV[5] == '1', ARGV[6]
local reply_was_lost = ARGV[7] == '1'

local DONE, DEAD, REFUSED, UNKNOWN, HELD = 1, 2, 0, 3, 4
local ITEM = 9
local LONGEST_DELAY_MS = 316224000000 -- ten years: far below the scores of suspects
local first = 9
local items = (#ARGV - first + 1) / ITEM

-- Who owns what: one XPENDING over a run of neighbours serves many items, since a worker's deliveries lie together.
-- `look` falls back to one where the worker's entries are scattered, and grows while neighbours hit.
local owned = {}
local look = math.max(1, math.min(items, 128))
local function pending(entry_id)
  local row = owned[entry_id]
  if row ~= nil then
    return row
  end
  local rows = redis.call('XPENDING', source, group, entry_id, '+', look, consumer)
  if #rows == 0 or rows[1][1] ~= entry_id then
    owned[entry_id] = false
    look = 1
    return false
  end
  for i = 1, #rows do
    owned[rows[i][1]] = rows[i][4]
  end
  look = math.min(look * 2, 128)
  return owned[entry_id]
end

local function event(name, item, tail)
  if write_journal then
    journal_event(journal, maxlen, name, ARGV[item + 3], ARGV[item + 6] .. tail .. '}')
  end
end

open_for_writing(source, group)
-- Entries of the stream belong to every group that reads it: one that was added later must still see them.
local delete_acked = source == retry or (ARGV[8] == '1' and #redis.call('XINFO', 'GROUPS', stream) == 1)

local results, acked, ids, n_acked = {}, {}, {}, 0
local policy, max_deliveries, at
local function agreed()
  if not policy then
    local values = redis.call('HMGET', agreement, 'policy', 'max_deliveries')
    policy = values[1] or ARGV[4]
    max_deliveries = math.max(1, whole_number(values[2], tonumber(ARGV[3])))
    at = now_ms()
  end
end

local function remove(entry_id, delete)
  redis.call('XACK', source, group, entry_id)
  owned[entry_id] = false
  if delete then
    redis.call('XDEL', source, entry_id)
  end
end

local function is_counted(verb)
  return verb == 'nack' or verb == 'reject'
end

-- Writes the job's copy where it becomes ready: now, or once its delay has passed. Returns the event's tail, or nil and why.
local function make_ready_again(item, job, count, target)
  local verb, waits, tail = ARGV[item + 2], 0, ''
  if verb == 'retry' then
    waits, tail = job.waits + 1, ',"counts":false'
  elseif verb == 'hand_back' then
    waits = job.waits
  elseif ARGV[item + 4] ~= 'max_deliveries' then
    tail = ',"reason":' .. json_string(ARGV[item + 4])
  end
  local deliveries = is_counted(verb) and count or math.min(count, max_deliveries) - 1
  local consumers = with_consumer(job, consumer)
  local delay = verb ~= 'hand_back' and math.min(whole_number(ARGV[item + 7], 0), LONGEST_DELAY_MS) or 0
  if delay == 0 then
    local id, why = add_entry(target, ready_fields(job, deliveries, consumers, waits))
    return id and tail .. ',"new_entry":' .. json_string(id), why
  end
  if #job.user + READY_FIELDS + 2 > MAX_ARGUMENTS then -- scheduled, it could never be made ready
    return nil, 'too many fields'
  end
  local ok, why = park_until(schedule, at + delay, pack_job('retry', job, deliveries, consumers, waits))
  return ok and tail .. string.format(',"due_ms":%.0f', at + delay), why
end

-- everything but an ack needs the payload; returns a result code
local function give_up_or_redeliver(item)
  agreed()
  local entry_id, times, verb = ARGV[item], tonumber(ARGV[item + 1]), ARGV[item + 2]
  local entry = redis.call('XRANGE', source, entry_id, entry_id)[1]
  if not entry then
    remove(entry_id, false)
    event('lost_payload', item, '')
    return DONE
  end
  local job = open_entry(entry_id, entry[2])
  local count = delivery_count(job, times, max_deliveries)
  if verb == 'reject' or (verb == 'nack' and count >= max_deliveries) then
    local reason = ARGV[item + 4]
    local id, why = add_entry(dead, dead_letter_fields(job, {
      stream = stream, group = group, reason = reason, error = ARGV[item + 5],
      deliveries = count, consumers = with_consumer(job, consumer), last_ms = at, at_ms = at,
      traceback = ARGV[item + 8],
    }))
    if not id then
      return { HELD, why }
    end
    remove(entry_id, source == retry)
    event('dead_lettered', item, ',"dead_letter":' .. json_string(id) .. ',"reason":' .. json_string(reason))
    return { DEAD, id }
  end
  local target = stream
  if policy == 'retry-stream' or source == retry then
    target = retry
  else
    local refusal = layout_refusal(policy, stream, at)
    if refusal then
      return { HELD, refusal }
    end
  end
  local tail, why = make_ready_again(item, job, count, target)
  if not tail then
    return { HELD, why }
  end
  remove(entry_id, target == source)
  event(verb == 'hand_back' and 'handed_back' or 'nacked', item, tail)
  return DONE
end

for i = 1, items do
  local item = first + (i - 1) * ITEM
  local entry_id = ARGV[item]
  local times = pending(entry_id)
  if times == false or times ~= tonumber(ARGV[item + 1]) then
    if reply_was_lost and not redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1] then
      results[i] = UNKNOWN
    else
      results[i] = REFUSED
      event('refused', item, ',"verb":' .. json_string(ARGV[item + 2]))
    end
  elseif ARGV[item + 2] == 'ack' then
    n_acked = n_acked + 1
    ids[n_acked], acked[n_acked] = entry_id, item
    owned[entry_id] = false
    results[i] = DONE
  else
    results[i] = give_up_or_redeliver(item)
  end
end

for from = 1, n_acked, 1000 do
  local to = math.min(from + 999, n_acked)
  redis.call('XACK', source, group, unpack(ids, from, to))
  if delete_acked then
    redis.call('XDEL', source, unpack(ids, from, to))
  end
end
for i = 1, n_acked do
  event('acked', acked[i], '')
end
return results
