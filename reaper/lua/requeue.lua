-- lost -> ready: an operator gives lost deliveries back. Each becomes a copy at the end of the stream (or of the retry stream): the same
-- job and generation, with the deliveries that were counted before.
--
-- KEYS[1] to KEYS[8] as in keys.lua (KEYS[1] is the stream in which the entries are)
-- ARGV[1] group  ARGV[2] journal's MAXLEN  ARGV[3] policy, where the group has agreed on none  ARGV[4] '1' = dry run: decide, write nothing
-- ARGV[5] payload bytes after which the rest is put off  ARGV[6…] entry IDs
--
-- Returns {'ok', row…}, one row an ID: {outcome, detail, job ID}
--   missing: the entry is not in `source` (any more)   done: ready again, detail = new entry ID ('' in a dry run)
--   pending: a worker has it, or recovery will come    ready: the group has not delivered it yet
--   undeliverable: cannot be copied, detail = why      put_off: ask again
-- or {'refused', 'no_group'}: a copy would become ready where the group does not exist, and so be lost.
-- Fence: none. An entry that was copied is deleted, unless other groups may need it: then the journal alone tells (event `requeued`).

--- @keys
--- @prelude

local dry_run, budget = ARGV[4] == '1', tonumber(ARGV[5])
local first = 6

if not group_position(stream, group) then
  return { 'refused', 'no_group' }
end
local policy = redis.call('HGET', settings, 'policy') or ARGV[3]
local position = group_position(source, group) or '0-0'
local target = target_for_operators(policy)
local is_deleted_then = source == retry or policy == 'stream'
if not dry_run then
  open_for_writing(source, group)
  redis.call('XDEL', source, '0-0')
end

local bytes = 0
local function requeue(entry_id)
  local entry = entry_of(entry_id)
  if not entry then
    return { 'missing', '', '' }
  end
  local job = open_job(entry_id, entry[2])
  bytes = bytes + job.bytes
  if pending_row(entry_id) then
    return { 'pending', '', job.id }
  elseif is_after(entry_id, position) then
    return { 'ready', '', job.id }
  elseif dry_run then
    return { 'done', '', job.id }
  end
  local id, why = copy(target, job, job.deliveries, ready_fields(job))
  if not id then
    return { 'undeliverable', why, job.id }
  end
  if is_deleted_then then
    redis.call('XDEL', source, entry_id)
  end
  write_event({ 'event', 'requeued', 'group', group, 'mode', 'operator', 'entry', entry_id, 'job', job.id,
    'source', source == retry and 'retry' or 'stream', 'generation', job.generation, 'enqueued_ms', job.first_ms, 'new_entry', id })
  return { 'done', id, job.id }
end

local reply = { 'ok' }
for i = first, #ARGV do
  reply[#reply + 1] = bytes > budget and { 'put_off', '', '' } or requeue(ARGV[i])
end
return reply
