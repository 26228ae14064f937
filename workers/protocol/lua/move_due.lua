-- scheduled, due -> ready; quarantined -> released, one after the other. By the holder of the lease (embedded: by any worker).
--
-- KEYS[1] to KEYS[8] as in keys.lua (KEYS[1] is the stream)
-- KEYS[9] lease  {orders}:lease:billing  string
-- KEYS[10] delayed enqueues, for every group of the stream  {orders}:scheduled  sorted set
-- ARGV[1] group  ARGV[2] journal's MAXLEN  ARGV[3] the caller's lease, its whole value ('' = embedded)  ARGV[4] token
-- ARGV[5] most jobs that the call moves out of each schedule
--
-- Returns {'ok', ms until the next one is due (0 = call again, -1 = none), quarantined jobs in the schedule, released jobs that are not
-- settled, {job ID, new entry} of the one released now, or {}, number of released jobs that are settled since the last call,
-- due jobs that cannot be made ready, why the last one cannot},
-- or {'fenced', lease found}, {'unknown'}, {'paused'}.
-- Fence: the whole value is compared, or recovery is `embedded` (declining_reply).
-- The gate: a job is released when fewer than `gate_width` of the released ones are in doubt. One is in doubt until it is settled or its
-- worker has shown that it runs. Where plain workers read, that is one: they cannot run it alone.

--- @keys
--- @prelude

local MOST_RELEASED, HOLD_MS = 64, 10000
local holder, token, most, enqueues = ARGV[3], ARGV[4], tonumber(ARGV[5]), KEYS[10]
local in_force = read_settings()
local declined = declining_reply(in_force, holder, KEYS[9], 'move_due', token)
if declined then
  return declined
end
open_for_copies()
redis.call('ZREM', schedule, '')
local target, unsupported = copy_target(in_force)

-- Makes a job ready. Returns its new entry, or nil if that failed. Then it is tried again later, behind the other jobs.
local n_held, why_held = 0, ''
local function release(zset, member, job)
  local ok, id, why = pcall(function()
    if job and job.kind == 'enqueue' then
      return add_first(job.user, job.id)
    elseif job and target then
      return copy(target, job, job.deliveries, ready_fields(job))
    end
    return nil, job and unsupported or 'the schedule has a member that is not a job'
  end)
  if not ok or not id then
    n_held, why_held = n_held + 1, why or type(id) == 'table' and id.err or tostring(id)
    redis.call('ZADD', zset, 'XX', digits((job and job.quarantined and QUARANTINE_SCORE or 0) + at + HOLD_MS), member)
    return nil
  end
  redis.call('ZREM', zset, member)
  return id
end

-- Returns whether there may be more.
local function move_due(zset)
  local members = redis.call('ZRANGEBYSCORE', zset, '-inf', digits(at), 'LIMIT', 0, most)
  for _, member in ipairs(members) do
    local job = unpacked(member)
    if job and job.quarantined then
      redis.call('ZADD', zset, digits(QUARANTINE_SCORE + at), member)
    else
      release(zset, member, job)
    end
  end
  return #members == most
end

-- Returns how many released jobs are not settled, how many of them are in doubt, and how many are settled. Forgets these.
local function look_at_released()
  local out, in_doubt, settled, values, delivered = 0, 0, 0, redis.call('HGETALL', quarantine), { [''] = false }
  for i = 1, #values, 2 do
    local id, released = values[i], read_released(values[i + 1]) or { key = stream }
    local key = string.find(id, '^%d+%-%d+$') and released.key or '' -- a foreign field
    if delivered[key] == nil then
      delivered[key] = group_position(key, group) or false
    end
    local row = delivered[key] and redis.call('XPENDING', key, group, id, id, 1)[1]
    local is_unread = not row and delivered[key] and is_after(id, delivered[key]) and #redis.call('XRANGE', key, id, id) == 1
    if row or is_unread then
      out = out + 1
      in_doubt = in_doubt + (released.lives and 0 or 1)
    else
      settled = settled + 1
      redis.call('HDEL', quarantine, id)
    end
  end
  return out, in_doubt, settled
end

-- Returns how many released jobs may be in doubt at a time: a quarter of our workers, at least one, and one if a third party reads.
local function gate_width()
  local ours = 0
  for _, key in ipairs({ stream, retry }) do
    for _, info in ipairs(group_position(key, group) and redis.call('XINFO', 'CONSUMERS', key, group) or {}) do
      local is_active = info_field(info, 'pending') > 0 or info_field(info, 'idle') < in_force.visibility_ms
      if is_active and not string.find(info_field(info, 'name'), OUR_CONSUMER) then
        return 1
      end
      ours = ours + (is_active and key == stream and 1 or 0)
    end
  end
  return math.max(1, math.floor(ours / 4))
end

local is_more = move_due(schedule)
is_more = move_due(enqueues) or is_more
local out, in_doubt, settled = look_at_released()
local member, released = redis.call('ZRANGEBYSCORE', schedule, digits(QUARANTINE_SCORE), '+inf', 'LIMIT', 0, 1)[1], {}
if member and out < MOST_RELEASED and in_doubt < gate_width() then
  local job = unpacked(member)
  local id = release(schedule, member, job)
  if id then
    write_released(id, { key = target })
    tell('recovered', '', digits(job.deliveries), 'released', job.entry, job.id, job.generation, '', id) -- a retry is in the event of its nack
    released, out = { job.id, id }, out + 1
  end
end
write_events({ 'mode', holder == '' and 'embedded' or 'reaper', 'token', token })

local first_due = QUARANTINE_SCORE
for _, zset in ipairs({ schedule, enqueues }) do
  first_due = math.min(first_due, tonumber(redis.call('ZRANGE', zset, 0, 0, 'WITHSCORES')[2] or QUARANTINE_SCORE))
end
local next_ms = is_more and 0 or first_due < QUARANTINE_SCORE and math.max(0, first_due - at) or -1
return { 'ok', next_ms, redis.call('ZCOUNT', schedule, digits(QUARANTINE_SCORE), '+inf'), out, released, settled, n_held, why_held }
