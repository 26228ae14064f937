-- suspect -> ready, a few at a time: suspects are let out so slowly that a poison job among them runs alone. By the leader
-- (embedded: by any worker).
--
-- The first SOLO of a row that settle go one at a time; then each that settles doubles how many may be out, up to
-- MAX_OUT. A crash starts over (recovery). A suspect whose delivery was extended once has proved its life and lets the
-- next one out; one that was extended for a whole visibility timeout is in nobody's way. One that crashed in company runs
-- alone: only such as are in nobody's way may be out beside it, and from the second crash on nobody at all, until it is settled.
--
-- KEYS[1] stream     orders                       stream
-- KEYS[2] retry      {orders}:retry:billing       stream
-- KEYS[3] schedule   {orders}:scheduled:billing   sorted set
-- KEYS[4] suspects   {orders}:suspects:billing    hash: entry ID -> what read_suspect in prelude reads
-- KEYS[5] fence      {orders}:fence:billing       string
-- KEYS[6] agreement  {orders}:group:billing       hash
-- KEYS[7] journal    {orders}:journal             stream
-- KEYS[8] notes      {orders}:notes:billing       hash: of what is given back where it is (prelude)
-- ARGV[1] fence of the caller ('' = an embedded worker's, which has none)  ARGV[2] group  ARGV[3] policy
-- ARGV[4] journal: '1' = write events  ARGV[5] journal's MAXLEN  ARGV[6] the caller's token (0 = none)
--
-- Returns {'ok', parked, out, settled since the last call, {job ID, new entry ID}…}, or {'stale', fence found},
-- {'paused'}, {'refused', why}.
-- Fence: the whole value is compared; without one, the group must have agreed on embedded recovery.

--- @prelude

local stream, retry, schedule, suspects = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local fence, agreement, journal, notes = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local own, group, policy = ARGV[1], ARGV[2], ARGV[3]
local write_journal, maxlen, token = ARGV[4] == '1', ARGV[5], ARGV[6]
local SOLO, MAX_OUT = 100, 64
local MOST_OUT = 512 -- with those in nobody's way: each is looked at in every call
local MAX_SKIPPED = 100
local EXTENDED_MS = 20 -- two looks at one delivery's moment may differ by less

local found = refused_by_fence(own, fence, agreement)
if found then
  if write_journal then
    journal_event(journal, maxlen, 'refused', '', '{"v":1,"group":' .. json_string(group)
      .. ',"verb":"release_suspects","token":' .. token .. ',"fence":' .. json_string(found) .. ',"entries":0}')
  end
  redis.pcall('HINCRBY', agreement, 'refused', 1)
  return { 'stale', found }
end
if redis.call('HGET', agreement, 'paused') == '1' then
  return { 'paused' }
end
redis.call('HDEL', agreement, '') -- harmless, and a write: what follows then works under maxmemory
redis.call('ZREM', schedule, '') -- harmless: what follows a copy is asked for before it (open_for_writing)
local at = now_ms()
local target, refusal = copy_target(policy, stream, retry, at)
if refusal then
  return { 'refused', refusal }
end

local function last_delivered(key)
  for _, info in ipairs(redis.pcall('XINFO', 'GROUPS', key)) do
    if info_field(info, 'name') == group then
      return info_field(info, 'last-delivered-id')
    end
  end
  return '0-0'
end

local agreed = redis.call('HMGET', agreement, 'suspects_settled', 'visibility_ms')
local visibility = whole_number(agreed[2], math.huge)

-- Out: all of them; near: without those in nobody's way; unproved: not extended yet. Alone: somebody is who runs alone.
local out, near, unproved, alone = 0, 0, 0, false
local function count_out(suspect, is_proved, is_past)
  out = out + 1
  near = near + (is_past and 0 or 1)
  unproved = unproved + (is_proved and 0 or 1)
  local crashes = suspect.company + (suspect.crashed and 1 or 0)
  alone = alone or crashes > 1 or (crashes == 1 and not is_past)
end

-- The pending entries list tells when an entry was delivered or extended last, so what is later than the delivery that was
-- seen first is an extension; of our workers, what is later than its beginning. Notes a delivery that is new to us.
local function look_at(entry_id, suspect, row)
  local sign = row[3] >= 0 and at - row[3] or nil -- of life
  if not sign then
    return false, false
  end
  if suspect.times ~= row[4] then
    suspect.times, suspect.since = row[4], sign
    redis.call('HSET', suspects, entry_id, written_suspect(suspect))
    return false, false
  end
  if suspect.arrived ~= row[4] and string.find(row[2], OUR_CONSUMER) then
    return false, false -- it waits for its turn
  end
  return sign - suspect.since > EXTENDED_MS, sign - suspect.since >= visibility
end

local settled = 0
local delivered = {}
local released = redis.call('HGETALL', suspects)
for i = 1, #released, 2 do
  local entry_id, suspect = released[i], read_suspect(released[i + 1])
  local key = suspect.kind == 'retry' and retry or stream
  delivered[key] = delivered[key] or last_delivered(key)
  if is_after(entry_id, delivered[key]) and #redis.call('XRANGE', key, entry_id, entry_id) == 1 then
    count_out(suspect, false, false)
  else
    -- pcall: where stream or group are gone, so is the suspect.
    local row = redis.pcall('XPENDING', key, group, entry_id, entry_id, 1)[1]
    if row then
      count_out(suspect, look_at(entry_id, suspect, row))
    else
      redis.call('HDEL', suspects, entry_id)
      settled = settled + 1
    end
  end
end
local in_a_row = whole_number(agreed[1], 0) + settled
if settled > 0 then
  redis.call('HSET', agreement, 'suspects_settled', string.format('%d', in_a_row))
end
local window = 1
if in_a_row > SOLO then
  window = math.min(2 ^ math.min(in_a_row - SOLO, 16), MAX_OUT)
end

local reply = { 'ok', 0, 0, settled }

local function parked_job(member)
  if entry_named(member) then
    return waiting_there(member, stream, retry, group, notes, agreement)
  end
  local job = unpack_job(member)
  return job and job.kind == 'suspect' and job or nil
end

local function crashes_of(job)
  return job.suspect or 0 -- who was parked before there was such a field has none
end

local function may_go(crashes)
  if crashes > 0 then
    return crashes == 1 and near == 0 or out == 0
  end
  return unproved < window and near < MAX_OUT and out < MOST_OUT
end

local function make_ready(member, job, crashes)
  job.suspect = crashes
  local id, kind, deliveries
  if job.row then
    deliveries, id = job.counted, end_wait(job, group, notes, policy, target)
    kind = id == job.entry_id and job.kind or target == retry and 'retry' or 'stream'
  else
    deliveries, id = job.deliveries, add_entry(target, ready_fields(job, job.deliveries, job.consumers, job.waits))
    kind = target == retry and 'retry' or 'stream'
  end
  if not id then
    return false
  end
  redis.call('ZREM', schedule, member)
  redis.call('HSET', suspects, id, crashes > 0 and string.format('%s,%.0f', kind, crashes) or kind)
  reply[#reply + 1] = { job.job_id, id }
  if write_journal then
    journal_event(journal, maxlen, 'recovered', job.job_id, string.format(
      '{"v":1,"group":%s,%s,"entry":"%s","delivery":%d,"generation":%d,"enqueued_ms":%d,'
      .. '"reason":"suspect","new_entry":"%s"}',
      json_string(group), own == '' and '"mode":"embedded"' or '"mode":"reaper","token":' .. token, job.entry_id, deliveries, job.generation, job.first_ms, id))
  end
  return true
end

-- What cannot be made ready stays parked, and blocks nobody behind it; what is no job goes to the end of the row.
local skipped, put_off = 0, 0
local function put_behind(member)
  local reply = redis.pcall('ZADD', schedule, 'XX', string.format('%.0f', SUSPECT_SCORE + at), member)
  return type(reply) ~= 'table'
end

while not alone and skipped + put_off < MAX_SKIPPED do
  local member =
    redis.call('ZRANGEBYSCORE', schedule, string.format('%.0f', SUSPECT_SCORE), '+inf', 'LIMIT', skipped, 1)[1]
  local job = member and parked_job(member)
  local crashes = job and crashes_of(job)
  if not member or (job and not may_go(crashes)) then
    break
  end
  if job and make_ready(member, job, crashes) then
    count_out({ company = crashes }, false, false)
  elseif not job and entry_named(member) then -- it waits no more, and has nothing to do here
    redis.call('ZREM', schedule, member)
    put_off = put_off + 1
  elseif not job and put_behind(member) then
    put_off = put_off + 1
  else
    skipped = skipped + 1
  end
end
reply[2] = redis.call('ZCOUNT', schedule, string.format('%.0f', SUSPECT_SCORE), '+inf')
reply[3] = out
return reply
