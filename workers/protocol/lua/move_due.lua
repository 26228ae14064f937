-- scheduled, due -> ready: delayed retries of a group and delayed enqueues of its stream, by the leader (embedded: by any
-- worker). Suspects lie in the same schedule behind every due time, and are not meant.
--
-- KEYS[1] stream           orders                       stream
-- KEYS[2] retry            {orders}:retry:billing       stream
-- KEYS[3] schedule         {orders}:scheduled:billing   sorted set
-- KEYS[4] stream schedule  {orders}:scheduled           sorted set
-- KEYS[5] fence            {orders}:fence:billing       string
-- KEYS[6] agreement        {orders}:group:billing       hash
-- KEYS[7] journal          {orders}:journal             stream
-- KEYS[8] notes            {orders}:notes:billing       hash: of what is given back where it is (prelude)
-- ARGV[1] fence of the caller ('' = an embedded worker's, which has none)  ARGV[2] group
-- ARGV[3] policy, where the group has agreed on none  ARGV[4] journal: '1' = write events  ARGV[5] journal's MAXLEN
-- ARGV[6] the caller's token (0 = none)  ARGV[7] most jobs a call moves  ARGV[8] payload bytes after which it stops
-- ARGV[9] for how long a leader serves the group without another sign of life, in ms ('' = no leader)
--
-- Returns {'ok', moved, ms until the next is due (0 = call again, -1 = nothing is scheduled), held, why the last one is
-- held, suspects parked, the leader's agreement is there (1|0: it was lost, and is to be written anew)}, or
-- {'stale', fence found}. A held job cannot be made ready (no job, too large, the policy cannot
-- work here): it is looked at again after HOLD_MS, and is in nobody's way until then. A retry on probation is parked when it
-- is due: release_suspects.lua is to be called while any are.
-- Fence: the whole value is compared; without one, the group must have agreed on embedded recovery.

--- @prelude

local stream, retry, schedule, stream_schedule = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local fence, agreement, journal, notes = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local own, group = ARGV[1], ARGV[2]
local write_journal, maxlen, token = ARGV[4] == '1', ARGV[5], ARGV[6]
local most, budget = tonumber(ARGV[7]), tonumber(ARGV[8])
local HOLD_MS = 10000

local found = refused_by_fence(own, fence, agreement)
if found then
  if write_journal then
    journal_event(journal, maxlen, 'refused', '', '{"v":1,"group":' .. json_string(group)
      .. ',"verb":"move_due","token":' .. token .. ',"fence":' .. json_string(found) .. ',"entries":0}')
  end
  return { 'stale', found }
end
redis.call('HDEL', agreement, '') -- harmless, and a write: what follows then works under maxmemory
redis.call('ZREM', schedule, '') -- harmless: what follows a copy is asked for before it (open_for_writing)
local at = now_ms()
local now = string.format('%.0f', at)
if own ~= '' then -- while leaders say so, embedded workers stand by (join_group.lua)
  redis.pcall('HSET', agreement, 'served_until', string.format('%.0f', at + tonumber(ARGV[9])))
end

-- A retry becomes ready as any redelivery does; an enqueue is the first entry of its job, for every group of the stream.
local policy = redis.call('HGET', agreement, 'policy') or ARGV[3]
local target, refusal = copy_target(policy, stream, retry, at)

-- The same for what waits where it is; what waits no more has nothing to do here.
local function end_wait_of(member)
  local job = waiting_there(member, stream, retry, group, notes, agreement)
  if not job then
    return true
  elseif job.suspect then -- it stays laid aside, and stands with the suspects from now on
    redis.call('ZADD', schedule, string.format('%.0f', SUSPECT_SCORE + at), member)
    return 'parked'
  elseif refusal then
    return nil, refusal
  end
  return end_wait(job, group, notes, policy, target)
end

local function make_ready(job)
  if job.kind == 'enqueue' then
    local fields, n = job.user, #job.user
    fields[n + 1], fields[n + 2] = 'reaper.job', job.job_id
    return add_entry(stream, fields)
  end
  if refusal then
    return nil, refusal
  end
  if job.suspect then
    return park_suspect(schedule, job, SUSPECT_SCORE + at, job.deliveries, job.consumers, job.waits)
  end
  return add_entry(target, ready_fields(job, job.deliveries, job.consumers, job.waits))
end

local moved, held, why, bytes = 0, 0, '', 0
local function move(zset)
  while moved + held < most and bytes <= budget do
    local member = redis.call('ZRANGEBYSCORE', zset, '-inf', now, 'LIMIT', 0, 1)[1]
    if not member then
      return
    end
    bytes = bytes + #member
    local act, job, id, problem = nil, nil, nil, 'it is no job of ours'
    if zset == schedule and entry_named(member) then
      act, job = end_wait_of, member
    else
      job = unpack_job(member)
      act = job and make_ready
    end
    if act then
      local ok, result, error = pcall(act, job)
      id, problem = ok and result, error
      if not ok then
        problem = type(result) == 'table' and result.err or tostring(result)
      end
    end
    if id == 'parked' then
      moved = moved + 1
    elseif id then
      redis.call('ZREM', zset, member)
      moved = moved + 1
    else
      redis.call('ZADD', zset, 'XX', string.format('%.0f', at + HOLD_MS), member)
      held, why = held + 1, problem
    end
  end
end

-- Each has its own share of the call: a flood in one keeps nobody in the other waiting.
move(schedule)
most, bytes = most + moved + held, 0
move(stream_schedule)

local function next_due(zset)
  local head = redis.call('ZRANGE', zset, 0, 0, 'WITHSCORES')[2]
  head = head and tonumber(head)
  return head and head < SUSPECT_SCORE and head or nil
end
local first, second = next_due(schedule), next_due(stream_schedule)
local due = first and second and math.min(first, second) or first or second
local parked = redis.call('ZCOUNT', schedule, string.format('%.0f', SUSPECT_SCORE), '+inf')
local is_agreed = own == '' or redis.call('HGET', agreement, 'fence_token') ~= false
return { 'ok', moved, due and math.max(0, due - at) or -1, held, why, parked, is_agreed and 1 or 0 }
