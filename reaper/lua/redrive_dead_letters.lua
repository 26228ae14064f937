-- dead -> ready: an operator gives dead letters back, as the next generation of their jobs.
--
-- KEYS[1] to KEYS[8] as in keys.lua (KEYS[1] is the stream of dead letters)
-- ARGV[1] group  ARGV[2] journal's MAXLEN  ARGV[3] policy, where the group has agreed on none  ARGV[4] '1' = dry run: decide, write nothing
-- ARGV[5] payload bytes after which the rest is put off  ARGV[6] highest generation a job may reach ('' = no loop guard)
-- ARGV[7…] IDs of dead letters
--
-- Returns {'ok', row…}, one row an ID: {outcome, detail, job ID}
--   missing: not in the dead-letter stream (any more)      done: ready again, detail = new entry ID ('' in a dry run)
--   looped: stopped by the loop guard, detail = generation undeliverable: cannot be copied, detail = why; stays dead
--   put_off: ask again
-- or {'refused', 'no_group'}: the jobs would become ready where the group does not exist, and so be lost.
-- Fence: none; each write is guarded by the dead letter's being there, so that a lost reply redrives nothing twice.

--- @keys
--- @prelude

local dry_run, budget, highest = ARGV[4] == '1', tonumber(ARGV[5]), tonumber(ARGV[6])
local first = 7
local DEAD_PREFIX = 'reaper.dead.'

local target = target_for_operators(redis.call('HGET', settings, 'policy') or ARGV[3])
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
