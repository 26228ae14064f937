-- lost -> ready: an operator gives lost deliveries back. Each becomes a copy at the end of the stream (or of the retry stream): the same
-- job and generation, with the deliveries that were counted before.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream in which the entries lie
-- KEYS[2] stream     orders                              stream
-- KEYS[3] retry      {orders}:retry:billing              stream
-- KEYS[4] agreement  {orders}:group:billing              hash
-- KEYS[5] journal    {orders}:journal                    stream
-- ARGV[1] group  ARGV[2] policy, where the group has agreed on none  ARGV[3] '1' = dry run: decide, write nothing
-- ARGV[4] journal: '1' = write events  ARGV[5] journal's MAXLEN
-- ARGV[6] payload bytes after which the rest is put off  ARGV[7…] entry IDs
--
-- Returns {'ok', row…}, one row an ID: {outcome, detail, job ID}
--   missing: the entry is not in `source` (any more)   done: ready again, detail = new entry ID ('' in a dry run)
--   pending: a worker has it, or recovery will come    ready: the group has not delivered it yet
--   undeliverable: cannot be copied, detail = why      put_off: ask again
-- or {'refused', 'no_group'}: a copy would become ready where the group does not exist, and so be lost.
-- Fence: none. An entry that was copied is deleted, unless other groups may need it: then the journal alone tells (event `requeued`).

local source, stream, retry, agreement, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, dry_run = ARGV[1], ARGV[3] == '1'
local maxlen, budget = ARGV[4] == '1' and tonumber(ARGV[5]) or 0, tonumber(ARGV[6])
local first = 7

--- @prelude

if not group_position(stream, group) then
  return { 'refused', 'no_group' }
end
local policy = redis.call('HGET', agreement, 'policy') or ARGV[2]
local position = group_position(source, group) or '0-0'
-- Where a copy in the stream would be wrong, the group's own retry stream is right: only this group reads it.
local target = (policy == 'retry-stream' or layout_refusal('stream', stream, at)) and retry or stream
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
