-- Ready again, in place (policy `in-place`) or as a copy.

local may_nack -- this server runs XNACK for us, as Redis 8.8 does; nil = not asked yet
local function nacked(entry_id, count)
  if may_nack == nil then
    local is_known, may = pcall(redis.acl_check_cmd, 'XNACK', source, group, 'FAIL', 'IDS', '1', entry_id) -- from Redis 7.0 on
    may_nack = is_known and may
  end
  if may_nack then
    may_nack = redis.pcall('XNACK', source, group, 'FAIL', 'IDS', '1', entry_id, 'RETRYCOUNT', count) == 1
  end
  return may_nack
end

-- Makes an entry ready in place. Redis looks for its place among all pending entries from the youngest end on, unless it is older than
-- all. So entries that recovery makes ready get a descending TIME: a mass of equal IDLE times would cost the square of its size. The TIME counts
-- these entries, by numbers that are taken by the thousand, because a call costs more.
local made, made_until, MADE_AT_ONCE = 0, 0, 1000
local function release_in_place(row, in_force, count)
  if nacked(row[1], count) then
    return
  end
  local word, ms = 'IDLE', 4 * READY_MS
  if in_force.recovers then
    if made == made_until then
      made_until = redis.call('HINCRBY', settings, 'made_ready', MADE_AT_ONCE)
      made = made_until - MADE_AT_ONCE
    end
    made = made + 1
    word, ms = 'TIME', 1000 * READY_MS - made
  end
  redis.call('XCLAIM', source, group, row[2], 0, row[1], word, digits(ms), 'RETRYCOUNT', count, 'JUSTID')
end

-- Makes a job ready again: now, at `due` (ms), or, a quarantined one, when move_due.lua releases it. `deliveries` count so far.
-- Returns the ID of its entry ('' = it waits in the schedule), or nil and the reason if the call had no effect.
local function make_ready(job, row, in_force, deliveries, due)
  local waits = due or job.quarantined
  -- In place, the fields of an entry do not change.
  local is_said = job.waits == job.said_waits and job.hand_backs == job.said_hand_backs and deliveries >= job.deliveries
  if in_force.policy == 'in-place' and not waits and is_said then
    release_in_place(row, in_force, deliveries - job.deliveries)
    return row[1]
  end
  local target, why = copy_target(in_force)
  if not target or #job.user + 26 > MAX_WORDS then
    return nil, why or 'too many fields'
  end
  local id
  if waits then
    id, why = put_in_schedule(due or QUARANTINE_SCORE + at, packed(job, deliveries, due and 'retry' or 'quarantine'))
    copied = copied + (id and 1 or 0)
  else
    id, why = copy(target, job, deliveries, ready_fields(job))
  end
  if id then
    leave(job)
  end
  return id, why
end
