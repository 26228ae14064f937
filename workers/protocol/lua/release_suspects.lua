-- suspect -> ready, a few at a time: suspects are let out so slowly that a poison job among them runs alone. By the leader
-- (embedded: by any worker).
--
-- The first SOLO of a row that settle go one at a time; then each that settles doubles how many may be out, up to
-- MAX_OUT. A crash starts over (recovery.lua). MAX_OUT < SOLO: those that crashed in company run alone next.
--
-- KEYS[1] stream     orders                       stream
-- KEYS[2] retry      {orders}:retry:billing       stream
-- KEYS[3] schedule   {orders}:scheduled:billing   sorted set
-- KEYS[4] suspects   {orders}:suspects:billing    hash: entry ID -> stream | retry, with '!' when it crashed in company
-- KEYS[5] fence      {orders}:fence:billing       string
-- KEYS[6] agreement  {orders}:group:billing       hash
-- KEYS[7] journal    {orders}:journal             stream
-- ARGV[1] fence of the caller ('' = an embedded worker's, which has none)  ARGV[2] group  ARGV[3] policy
-- ARGV[4] journal: '1' = write events  ARGV[5] journal's MAXLEN  ARGV[6] the caller's token (0 = none)
--
-- Returns {'ok', parked, out, settled since the last call, {job ID, new entry ID}…}, or {'stale', fence found},
-- {'paused'}, {'refused', why}.
-- Fence: the whole value is compared; without one, the group must have agreed on embedded recovery.

--- @prelude

local stream, retry, schedule, suspects = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local fence, agreement, journal = KEYS[5], KEYS[6], KEYS[7]
local own, group, policy = ARGV[1], ARGV[2], ARGV[3]
local write_journal, maxlen, token = ARGV[4] == '1', ARGV[5], ARGV[6]
local SUSPECT_SCORE = 4503599627370496
local SOLO, MAX_OUT = 100, 64
local MAX_SKIPPED = 100

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
local at = now_ms()
local refusal = layout_refusal(policy, stream, at)
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

local out, settled = 0, 0
local delivered = {}
local released = redis.call('HGETALL', suspects)
for i = 1, #released, 2 do
  local entry_id = released[i]
  local key = string.sub(released[i + 1], 1, 5) == 'retry' and retry or stream
  delivered[key] = delivered[key] or last_delivered(key)
  local waiting = is_after(entry_id, delivered[key]) and #redis.call('XRANGE', key, entry_id, entry_id) == 1
  -- pcall: where stream or group are gone, so is the suspect.
  if waiting or #redis.pcall('XPENDING', key, group, entry_id, entry_id, 1) == 1 then
    out = out + 1
  else
    redis.call('HDEL', suspects, entry_id)
    settled = settled + 1
  end
end
local in_a_row = whole_number(redis.call('HGET', agreement, 'suspects_settled'), 0) + settled
if settled > 0 then
  redis.call('HSET', agreement, 'suspects_settled', string.format('%d', in_a_row))
end
local window = 1
if in_a_row > SOLO then
  window = math.min(2 ^ math.min(in_a_row - SOLO, 16), MAX_OUT)
end

local reply = { 'ok', 0, 0, settled }
local target = policy == 'stream' and stream or retry
local kind = policy == 'stream' and 'stream' or 'retry'

local function parked_job(member)
  local job = unpack_job(member)
  return job and job.kind == 'suspect' and job or nil
end

local function make_ready(member, job)
  local id = add_entry(target, ready_fields(job, job.deliveries, job.consumers))
  if not id then
    return false
  end
  redis.call('ZREM', schedule, member)
  redis.call('HSET', suspects, id, kind)
  reply[#reply + 1] = { job.job_id, id }
  if write_journal then
    journal_event(journal, maxlen, 'recovered', job.job_id, string.format(
      '{"v":1,"group":%s,%s,"entry":"%s","delivery":%d,"generation":%d,"enqueued_ms":%d,'
      .. '"reason":"suspect","new_entry":"%s"}',
      json_string(group), own == '' and '"mode":"embedded"' or '"mode":"reaper","token":' .. token, job.entry_id, job.deliveries, job.generation, job.first_ms, id))
  end
  return true
end

local skipped = 0 -- what cannot be made ready stays parked, and blocks nobody behind it
while out < window and skipped < MAX_SKIPPED do
  local member =
    redis.call('ZRANGEBYSCORE', schedule, string.format('%.0f', SUSPECT_SCORE), '+inf', 'LIMIT', skipped, 1)[1]
  if not member then
    break
  end
  local job = parked_job(member)
  if job and make_ready(member, job) then
    out = out + 1
  else
    skipped = skipped + 1
  end
end
reply[2] = redis.call('ZCOUNT', schedule, string.format('%.0f', SUSPECT_SCORE), '+inf')
reply[3] = out
return reply
