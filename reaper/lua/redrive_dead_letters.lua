-- dead -> ready: an operator gives dead letters back, as the next generation of their jobs.
--
-- KEYS[1] dead       {orders}:dead:billing    stream
-- KEYS[2] stream     orders                   stream
-- KEYS[3] retry      {orders}:retry:billing   stream
-- KEYS[4] agreement  {orders}:group:billing   hash
-- KEYS[5] journal    {orders}:journal         stream
-- ARGV[1] group  ARGV[2] policy, where the group has agreed on none
-- ARGV[3] highest generation a job may reach ('' = no loop guard)  ARGV[4] '1' = dry run: decide, write nothing
-- ARGV[5] journal: '1' = write events  ARGV[6] journal's MAXLEN
-- ARGV[7] payload bytes after which the rest is put off  ARGV[8…] IDs of dead letters
--
-- Returns {'ok', 'stream' | 'retry' (where the jobs go), row…}, one row an ID: {code, detail, job ID}, and of a traced
-- job that is ready again {traceparent, tracestate, what is known of its last delivery, its generation now}
--   0 gone: not in the dead-letter stream (any more)   1 ready again, detail = new entry ID ('' in a dry run)
--   2 stopped by the loop guard, detail = its generation   3 cannot be copied, detail = why; stays dead
--   4 put off, ask again
-- or {'refused', 'no_group'}: the jobs would become ready where the group does not exist, and so be lost.
-- Fence: none; each write is guarded by the dead letter's being there, so that a lost reply redrives nothing twice.

--- @prelude

local dead, stream, retry, agreement, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, highest, dry_run = ARGV[1], tonumber(ARGV[3]), ARGV[4] == '1'
local write_journal, maxlen, budget = ARGV[5] == '1', ARGV[6], tonumber(ARGV[7])
local first = 8

local GONE, REDRIVEN, LOOPED, HELD, PUT_OFF = 0, 1, 2, 3, 4
local DEAD_PREFIX = 'reaper.dead.'

local function group_exists()
  for _, info in ipairs(redis.pcall('XINFO', 'GROUPS', stream)) do
    if info_field(info, 'name') == group then
      return true
    end
  end
  return false
end

local policy = redis.call('HGET', agreement, 'policy') or ARGV[2]
local at = now_ms()
-- Where a copy in the stream would be wrong, the group's own retry stream is right: only this group reads it.
local target = retry
if policy ~= 'retry-stream' and not layout_refusal('stream', stream, at) then
  target = stream
  if not group_exists() then
    return { 'refused', 'no_group' }
  end
end
if not dry_run then
  open_for_writing(dead, group, true)
end

-- Takes what tells of the end off the fields; returns the reason that was among them.
local function without_end(job)
  local user, n, reason = {}, 0, ''
  for i = 1, #job.user, 2 do
    local name, value = job.user[i], job.user[i + 1]
    if name == 'reaper.dead.reason' then
      reason = value
    end
    if string.sub(name, 1, #DEAD_PREFIX) ~= DEAD_PREFIX then
      user[n + 1], user[n + 2] = name, value
      n = n + 2
    end
  end
  job.user = user
  return reason
end

local bytes = 0
local function redrive(dead_id)
  local entry = redis.call('XRANGE', dead, dead_id, dead_id)[1]
  if not entry then
    return { GONE, '', '' }
  end
  local job = open_entry(dead_id, entry[2])
  bytes = bytes + job.bytes
  job.generation = job.generation + 1
  if highest and job.generation > highest then
    return { LOOPED, job.generation - 1, job.job_id }
  end
  if dry_run then
    return { REDRIVEN, '', job.job_id }
  end
  local reason = without_end(job)
  job.suspect = nil
  local id, why = add_entry(target, ready_fields(job, 0, job.consumers))
  if not id then
    return { HELD, why, job.job_id }
  end
  redis.call('XDEL', dead, dead_id)
  if write_journal then
    journal_event(journal, maxlen, 'redriven', 'group', group, 'mode', 'operator', 'entry', dead_id, 'job', job.job_id,
      'generation', job.generation, 'deliveries', job.deliveries, 'enqueued_ms', job.first_ms, 'reason', reason, 'new_entry', id)
  end
  local traced = job.traceparent and { job.traceparent, job.tracestate, job.previous or '', job.generation } or nil
  return { REDRIVEN, id, job.job_id, traced }
end

local reply = { 'ok', target == stream and 'stream' or 'retry' }
for i = first, #ARGV do
  if bytes > budget then
    reply[#reply + 1] = { PUT_OFF, '', '' }
  else
    reply[#reply + 1] = redrive(ARGV[i])
  end
end
return reply
