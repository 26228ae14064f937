-- Copies: how a job leaves its entry, and becomes ready again, scheduled, quarantined, or a dead letter.

local MAX_WORDS = 7000 -- of a copy: unpack() fails a little below 8,000
local copied = 0 -- jobs that were written to another place in this call

-- Adds an entry. Returns its ID, or nil and why there is none.
local function add(target, words)
  if #words > MAX_WORDS then
    return nil, 'too many fields'
  end
  local reply = redis.pcall('XADD', target, '*', unpack(words))
  if type(reply) == 'table' then
    return nil, reply.err
  end
  return reply
end

-- Adds the first entry of a job.
local function add_first(words, job_id)
  local n = #words
  words[n + 1], words[n + 2] = 'reaper.job', job_id
  return add(stream, words)
end

-- Writes the fields of the user byte for byte, ours, and `more`. Returns the ID of the new entry, or nil and why there is none.
-- Extends `job.user` in place, so a job is copied once.
local function copy(target, job, deliveries, more)
  local words, n = job.user, #job.user
  words[n + 1], words[n + 2], words[n + 3], words[n + 4] = 'reaper.job', job.id, 'reaper.deliveries', digits(deliveries)
  words[n + 5], words[n + 6], words[n + 7], words[n + 8] = 'reaper.generation', job.generation, 'reaper.first_ms', job.first_ms
  words[n + 9], words[n + 10] = 'reaper.consumers', job.consumers
  n = n + 10
  for i = 1, #more do
    words[n + i] = more[i]
  end
  local id, why = add(target, words)
  copied = copied + (id and 1 or 0)
  return id, why
end

-- Returns the other fields of an entry that is ready. Most jobs have the same ones.
local ready_fields_of = {}
local function ready_fields(job)
  local is_plain = job.waits == 0 and job.hand_backs == 0 and not job.quarantined
  if is_plain and ready_fields_of[job.copies] then
    return ready_fields_of[job.copies]
  end
  local more = { 'reaper.copies', digits(job.copies + 1) }
  if is_plain then
    ready_fields_of[job.copies] = more
    return more
  end
  for _, name in ipairs({ 'waits', 'hand_backs' }) do
    if job[name] > 0 then
      more[#more + 1], more[#more + 2] = 'reaper.' .. name, digits(job[name])
    end
  end
  if job.quarantined then
    more[#more + 1], more[#more + 2] = 'reaper.quarantined', '1'
  end
  return more
end

-- Returns why copies cannot go into the stream itself, or nil. Other groups would see them, and Redis would reject a producer's next
-- explicit ID below theirs.
local FIRST_AUTOMATIC_MS = 1483228800000 -- 2017-01-01: streams are younger, so a producer chose an ID below it
local CLOCK_TOLERANCE_MS = 31622400000 -- a year: of a clock that was set back the IDs still are; other units are farther off
local function unsupported_layout(policy)
  if policy ~= 'stream' or redis.call('EXISTS', stream) == 0 then
    return nil
  elseif #redis.call('XINFO', 'GROUPS', stream) > 1 then
    return 'several_groups'
  end
  local info = redis.call('XINFO', 'STREAM', stream)
  local last_id = info_field(info, 'last-generated-id')
  local last_ms = entry_ms(last_id)
  -- Libraries make a stream for a group by adding one entry, whose ID they choose, and deleting it.
  local is_new = info_field(info, 'length') == 0 and (last_id == '0-1' or info_field(info, 'entries-added') == 1)
  local is_automatic = last_id == '0-0' or last_ms >= FIRST_AUTOMATIC_MS and last_ms <= at + CLOCK_TOLERANCE_MS
  return not is_new and not is_automatic and 'explicit_ids' or nil
end

-- Returns the stream for an operator's copies, and the reason if it is not the stream itself although the policy allows that. If a copy in
-- the stream would be wrong, it goes into the group's own stream, because only this group reads it.
local function target_for_operators(policy)
  local why = policy ~= 'retry-stream' and unsupported_layout('stream') or nil
  return (why or policy == 'retry-stream') and retry or stream, why
end

-- Returns the stream for copies, or nil and the reason if there is none, because policy `stream` has no other place.
local function copy_target(in_force)
  if not in_force.target and not in_force.unsupported then
    local target, why = target_for_operators(in_force.policy)
    in_force.unsupported = in_force.policy == 'stream' and why or nil
    in_force.target = not in_force.unsupported and target or nil
  end
  return in_force.target, in_force.unsupported
end

-- Notes that a job has left its entry; `finish` acknowledges all of them together.
local left, is_left = {}, {}
local function leave(job)
  left[#left + 1], is_left[job.entry] = job.entry, true
  if job.quarantined then
    redis.call('HDEL', quarantine, job.entry)
  end
end

-- Acknowledges what has left. Where copies go into the stream, the entry is deleted. So an entry that is there and is not pending was
-- not ended by our scripts (extend.lua). Returns nil, or an error: each job that was copied must leave exactly one entry.
local function finish(in_force)
  local acknowledged = 0
  for from = 1, #left, 1000 do
    local to = math.min(from + 999, #left)
    acknowledged = acknowledged + redis.call('XACK', source, group, unpack(left, from, to))
    if source == retry or copy_target(in_force) == stream then
      redis.call('XDEL', source, unpack(left, from, to))
    end
  end
  if copied ~= #left or acknowledged ~= #left then
    return redis.error_reply(string.format('BROKEN %d copied, %d left, %d acknowledged', copied, #left, acknowledged))
  end
end

-- Makes a dead letter. Returns its ID, or nil and why there is none.
local function give_up(job, row, count, reason, error, traceback)
  local more = { 'reaper.dead.stream', stream, 'reaper.dead.group', group, 'reaper.dead.entry', job.entry, 'reaper.dead.reason', reason,
    'reaper.dead.error', error, 'reaper.dead.last_ms', digits(is_given_back(row) and at or at - row[3]), 'reaper.dead.at_ms', digits(at) }
  if traceback ~= '' then
    more[#more + 1], more[#more + 2] = 'reaper.dead.traceback', traceback
  end
  local id, why = copy(dead, job, count, more)
  if id then
    leave(job)
    redis.call('HDEL', quarantine, job.entry)
  end
  return id, why
end
