-- dead, or lost -> ready: an operator makes jobs ready again. Each becomes a copy at the end of the stream (or of the retry stream).
-- A dead letter becomes the next generation of its job (redrive). A lost delivery stays the same job and generation, with the deliveries
-- that were counted before (requeue).
--
-- KEYS[1] to KEYS[8] as in keys.lua (KEYS[1] is the stream in which the entries are: that of dead letters, or one of lost deliveries)
-- ARGV[1] group  ARGV[2] journal's MAXLEN  ARGV[3] policy, where the group has none  ARGV[4] '1' = dry run: decide, write nothing
-- ARGV[5] payload bytes after which the rest is put off  ARGV[6] highest generation that a dead letter may reach ('' = no loop guard)
-- ARGV[7…] entry IDs
--
-- Returns {'ok', row…}, one row an ID: {outcome, detail, job ID}
--   missing: the entry is not in `source` (any more)   done: ready again, detail = new entry ID ('' in a dry run)
--   looped: a dead letter that the loop guard stopped, detail = generation
--   pending: a worker has it, or recovery will come    ready: the group has not delivered it yet
--   undeliverable: cannot be copied, detail = why      put_off: ask again
-- or {'no_group'}: a copy would become ready where the group does not exist, and so be lost.
-- Fence: none. An entry that was copied is deleted, unless other groups may need it: then the journal alone tells (event `requeued`).

--- @keys
--- @prelude

local dry_run, budget, highest = ARGV[4] == '1', tonumber(ARGV[5]), tonumber(ARGV[6])
local first = 7
local DEAD_PREFIX = 'reaper.dead.'

local policy = redis.call('HGET', settings, 'policy') or ARGV[3]
local target, is_dead = target_for_operators(policy), source == dead
local position = not is_dead and group_position(source, group) or '0-0'
if target == stream and not group_position(stream, group) then
  return { 'no_group' }
elseif not dry_run then
  open_for_writing(source, group)
  redis.call('XDEL', source, '0-0')
end

-- Returns why an entry is left alone, or nil.
local function objection_to(entry_id, job)
  if is_dead then
    return highest and job.generation + 1 > highest and 'looped' or nil
  end
  return pending_row(entry_id) and 'pending' or is_after(entry_id, position) and 'ready' or nil
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
local function make_ready_again(entry_id)
  local entry = entry_of(entry_id)
  if not entry then
    return { 'missing', '', '' }
  end
  local job = open_job(entry_id, entry[2])
  bytes = bytes + job.bytes
  local objection, before, reason = objection_to(entry_id, job), job.deliveries, ''
  if objection or dry_run then
    return { objection or 'done', objection == 'looped' and job.generation or '', job.id }
  elseif is_dead then
    reason = without_end(job)
    job.generation, job.quarantined, job.waits = digits(job.generation + 1), false, 0
  end
  local id, why = copy(target, job, is_dead and 0 or before, ready_fields(job))
  if not id then
    return { 'undeliverable', why, job.id }
  end
  if is_dead or source == retry or policy == 'stream' then
    redis.call('XDEL', source, entry_id)
  end
  local more = is_dead and { 'deliveries', digits(before), 'reason', reason } or { 'source', source == retry and 'retry' or 'stream' }
  write_event({ 'event', is_dead and 'redriven' or 'requeued', 'group', group, 'mode', 'operator', 'entry', entry_id, 'job', job.id,
    'generation', job.generation, 'enqueued_ms', job.first_ms, 'new_entry', id, unpack(more) })
  return { 'done', id, job.id }
end

local reply = { 'ok' }
for i = first, #ARGV do
  reply[#reply + 1] = bytes > budget and { 'put_off', '', '' } or make_ready_again(ARGV[i])
end
return reply
