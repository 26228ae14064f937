-- group of ours -> plain group: an operator removes our keys of the group. Scheduled jobs become ready first.
--
-- KEYS[1] to KEYS[8] as in keys.lua (KEYS[1] is the stream)
-- KEYS[9] lease      {orders}:lease:billing  string
-- ARGV[1] group  ARGV[2] journal's MAXLEN  ARGV[3] policy, where the group has none
-- ARGV[4] payload bytes after which the rest of the jobs is put off
--
-- Returns {code, jobs made ready by this call, detail}:
--   'done'           all keys are removed, except dead letters and the journal
--   'embedded'       its workers recover jobs; detail = one of them. All keys stay
--   'more'           jobs are still waiting in the schedule: call again
--   'served'         a replica holds the lease; detail = the lease. All keys stay
--   'no_group'       jobs wait in the schedule, and there is no group for which they could become ready
--   'held'           a waiting job cannot be made ready; detail = why
--   'retry_waiting'  the retry stream holds jobs that are not settled; detail = how many entries it has
-- Fence: the lease must be free, and no embedded worker may be registered.

--- @keys
--- @prelude

local budget = tonumber(ARGV[4])
local PAGE = 100

local found = redis.call('GET', KEYS[9]) or ''
if found ~= '' then
  return { 'served', 0, found }
end
if redis.call('HGET', settings, 'recovery') == 'embedded' then
  local served_by
  each_registration(settings, function(consumer, until_ms)
    served_by = until_ms and until_ms > at and consumer or served_by
  end)
  if served_by then
    return { 'embedded', 0, served_by }
  end
end
open_for_writing(stream, group)
redis.call('ZREM', schedule, '') -- asks for the right before there is a copy
redis.call('HLEN', quarantine) -- a key of another program is an error before it could be removed

local moved = 0
local target = target_for_operators(redis.call('HGET', settings, 'policy') or ARGV[3])

local function move(member)
  local job = unpacked(member)
  if not job then
    return nil, 'the schedule holds a member that is no job'
  end
  job.quarantined = false -- no tick will release it
  local id, why = copy(target, job, job.deliveries, ready_fields(job))
  if not id then
    return nil, why
  end
  redis.call('ZREM', schedule, member)
  moved = moved + 1
  write_event({ 'event', 'recovered', 'group', group, 'mode', 'operator', 'entry', job.entry, 'job', job.id,
    'delivery', digits(job.deliveries), 'generation', job.generation, 'enqueued_ms', job.first_ms, 'reason', 'forget', 'new_entry', id })
  return id
end

local bytes = 0
local waiting = redis.call('ZRANGE', schedule, 0, PAGE - 1)
if #waiting > 0 and target == stream and not group_position(stream, group) then
  return { 'no_group', 0, '' }
end
for _, member in ipairs(waiting) do
  if bytes > budget then
    break
  end
  bytes = bytes + #member
  local id, why = move(member)
  if not id then
    return { 'held', moved, why }
  end
end
if redis.call('ZCARD', schedule) > 0 then
  return { 'more', moved, '' }
end

-- Settled entries of a bare worker stay in the retry stream (it knows no XDEL): what counts is what nobody has settled.
local function retry_is_settled()
  if redis.call('EXISTS', retry) == 0 or redis.call('XLEN', retry) == 0 then
    return true
  end
  for _, reader in ipairs(redis.call('XINFO', 'GROUPS', retry)) do
    if info_field(reader, 'pending') > 0 or #entries_behind(retry, info_field(reader, 'last-delivered-id'), 1) > 0 then
      return false
    end
  end
  return group_position(retry, group) ~= nil
end
if not retry_is_settled() then
  return { 'retry_waiting', moved, redis.call('XLEN', retry) }
end

redis.call('DEL', settings, quarantine, schedule)
redis.call('UNLINK', retry)
return { 'done', moved, '' }
