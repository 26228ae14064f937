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
-- Returns {'ok', row…}, one row an ID: {outcome, detail, job ID}
--   missing: not in the dead-letter stream (any more)      done: ready again, detail = new entry ID ('' in a dry run)
--   looped: stopped by the loop guard, detail = generation undeliverable: cannot be copied, detail = why; stays dead
--   put_off: ask again
-- or {'refused', 'no_group'}: the jobs would become ready where the group does not exist, and so be lost.
-- Fence: none; each write is guarded by the dead letter's being there, so that a lost reply redrives nothing twice.

local source, stream, retry, agreement, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, highest, dry_run = ARGV[1], tonumber(ARGV[3]), ARGV[4] == '1'
local maxlen, budget = ARGV[5] == '1' and tonumber(ARGV[6]) or 0, tonumber(ARGV[7])
local first = 8

--- @prelude

local DEAD_PREFIX = 'reaper.dead.'

-- Where a copy in the stream would be wrong, the group's own retry stream is right: only this group reads it.
local policy = redis.call('HGET', agreement, 'policy') or ARGV[2]
local target = (policy == 'retry-stream' or layout_refusal('stream', stream, at)) and retry or stream
if target == stream and not group_position(stream, group) then
  return { 'refused', 'no_group' }
elseif not dry_run then
  open_for_writing(source, group)
  redis.call('XDEL', source, '0-0')
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
  local entry = entry_of(dead_id)
  if not entry then
    return { 'missing', '', '' }
  end
  local job = open_job(dead_id, entry[2])
  bytes = bytes + job.bytes
  if highest and job.generation + 1 > highest then
    return { 'looped', job.generation, job.id }
  elseif dry_run then
    return { 'done', '', job.id }
  end
  local reason = without_end(job)
  job.generation, job.quarantined, job.waits = digits(job.generation + 1), false, 0
  local id, why = copy(target, job, 0, ready_fields(job))
  if not id then
    return { 'undeliverable', why, job.id }
  end
  redis.call('XDEL', source, dead_id)
  write_event({ 'event', 'redriven', 'group', group, 'mode', 'operator', 'entry', dead_id, 'job', job.id, 'generation', job.generation,
    'deliveries', digits(job.deliveries), 'enqueued_ms', job.first_ms, 'reason', reason, 'new_entry', id })
  return { 'done', id, job.id }
end

local reply = { 'ok' }
for i = first, #ARGV do
  reply[#reply + 1] = bytes > budget and { 'put_off', '', '' } or redrive(ARGV[i])
end
return reply
