-- ours -> ours: the holder extends its lease, notes a beat, and reads new deliveries. It changes no other key, so a
-- fault in a group does not cost its lease.
--
-- KEYS[1] stream           orders                        stream
-- KEYS[2] settings         {orders}:group:billing        hash
-- KEYS[3] journal          {orders}:journal              stream. While a slot of a cluster moves, Redis rejects a call that names a missing
--                          key. So each call that notes a beat names all keys of a heartbeat (extend.lua)
-- KEYS[4] retry            {orders}:retry:billing        stream
-- KEYS[5] lease            {orders}:lease:billing        string
-- KEYS[6] schedule         {orders}:scheduled:billing    sorted set
-- KEYS[7] stream schedule  {orders}:scheduled            sorted set
-- ARGV[1] holder  ARGV[2] the lease's TTL in ms  ARGV[3] group  ARGV[4] start of the page in the stream ('-' or '(ID')
-- ARGV[5] the same in the retry stream ('' = it is not read)  ARGV[6] pending entries of a page  ARGV[7] '1' = a full scan follows
--
-- Returns 0 (the caller does not hold the lease), or {ms until a scheduled job is due (0 = one is due, or
-- a quarantined job waits; -1 = no job is scheduled), 1 if the group has its settings, rows of the stream as of XPENDING, rows of the retry
-- stream, error ('')}, and before a full scan also the last ID of the journal ('0-0' = none), and 1 if the retry stream exists.
-- Fence: the whole value is compared.

local stream, settings, journal, retry, lease, holder, ttl, group = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], ARGV[1], tonumber(ARGV[2]), ARGV[3]

--- @prelude

if redis.call('GET', lease) ~= holder then
  return 0
end
redis.call('PEXPIRE', lease, ttl)
local failed = ''
local function try(action, ...)
  local ok, found = pcall(action, ...)
  if ok then
    return found
  end
  failed = type(found) == 'table' and found.err or tostring(found)
end

local in_force = try(read_settings)
local has_settings = in_force and in_force.token or failed ~= '' -- a worker that joins after a loss writes all but the token
local rows = {}
try(function()
  rows = redis.call('XPENDING', stream, group, ARGV[4], '+', ARGV[6])
  open_for_writing(stream, group)
  probe_claim(stream)
  note_beat(in_force)
end)
local of_retry = ARGV[5] ~= '' and try(redis.call, 'XPENDING', retry, group, ARGV[5], '+', ARGV[6]) or {}

local due = -1
for i = 6, redis.call('EXISTS', KEYS[6], KEYS[7]) > 0 and 7 or 0 do
  local score = tonumber((try(redis.call, 'ZRANGE', KEYS[i], 0, 0, 'WITHSCORES') or {})[2])
  local last = score and tonumber(redis.call('ZRANGE', KEYS[i], -1, -1, 'WITHSCORES')[2])
  if score and (due < 0 or score - at < due) then
    due = last >= QUARANTINE_SCORE and 0 or math.max(0, score - at)
  end
end
local reply = { due, has_settings and 1 or 0, rows, of_retry, failed }
if ARGV[7] == '1' then
  local newest = redis.pcall('XREVRANGE', journal, '+', '-', 'COUNT', 1)[1]
  reply[6], reply[7] = newest and newest[1] or '0-0', redis.call('EXISTS', retry)
end
return reply
