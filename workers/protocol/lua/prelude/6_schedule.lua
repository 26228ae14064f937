-- The schedules: sorted sets of packed jobs, by the time in ms at which they are due.

local QUARANTINE_SCORE = 4503599627370496 -- 2^52: quarantined jobs are in the group's schedule behind every due time

-- Returns a member of a schedule: the whole job. Its entry ID, or its job ID before its first entry, makes it unique. `kind` is the
-- reason of the wait: retry, quarantine or enqueue.
local function packed(job, deliveries, kind)
  return cmsgpack.pack({ v = 1, kind = kind, job_id = job.id, entry_id = job.entry, user = job.user, deliveries = deliveries,
    generation = job.generation, first_ms = job.first_ms, consumers = job.consumers, copies = job.copies, waits = job.waits,
    hand_backs = job.hand_backs, quarantined = job.quarantined or nil })
end

-- Returns the job of a member of a schedule, or nil if it is none, because third parties can write there.
local function unpacked(member)
  local ok, job = pcall(cmsgpack.unpack, member)
  if not ok or type(job) ~= 'table' or job.v ~= 1 then
    return nil
  end
  job.id, job.entry, job.quarantined = job.job_id, job.entry_id, job.quarantined == true
  return job
end

-- Puts a packed job into the schedule. Wakes the processes that move due jobs if the job is due earlier than all others. Returns '', or nil
-- and the reason.
local function put_in_schedule(score, member)
  local head = redis.pcall('ZRANGE', schedule, 0, 0, 'WITHSCORES')
  local reply = head.err and head or redis.pcall('ZADD', schedule, digits(score), member)
  if type(reply) == 'table' then
    return nil, reply.err
  end
  if score < QUARANTINE_SCORE and (not head[2] or tonumber(head[2]) > score) then
    redis.pcall('PUBLISH', schedule, digits(score))
  end
  return ''
end
