-- A worker joins a group: creates the group (and the retry stream's) where it is missing, and learns what the
-- group agreed on. A value that nobody has set yet is set to ours, where we have one; a different one is recorded.
--
-- Who recovers: a leader that takes the group over writes `reaper`, and says for how long it is sure to serve. Embedded
-- workers stand by for so long; the first to join after that (or where no leader ever came) writes `embedded`, and removes
-- the fence, so that whatever the leader that is gone may still write here is refused. Workers of mode `claim` do the same, and
-- their policy is `in-place`, whatever the policy was: no reaper is there to choose it, and what lies elsewhere finds its way.
--
-- A worker that names itself gives its word: which version of the group settings it has read. Where there is no visibility timeout in
-- them yet, it writes the one that it assumes (`former_visibility_ms`), so that the first leader does not judge it by a shorter one before it
-- has read that. Embedded recovery needs a visibility timeout, so there it writes the one that it assumes into the settings. Group settings
-- that were lost are written anew by the first worker that knows them.
--
-- KEYS[1] stream     orders                   stream
-- KEYS[2] retry      {orders}:retry:billing   stream
-- KEYS[3] agreement  {orders}:group:billing   hash
-- KEYS[4] fence      {orders}:fence:billing   string
-- ARGV[1] group
-- ARGV[2] start ID of a group that has to be created ('0' = everything that is there), where none is remembered
-- ARGV[3] policy ('' = follow the group)  ARGV[4] visibility timeout in ms ('')  ARGV[5] max_deliveries ('')
-- ARGV[6] recovery mode (reaper | embedded | claim)  ARGV[7] worker's name, for the record of a mismatch
-- ARGV[8] our consumer ('' or left out, and all that follow: we give no word)  ARGV[9] for how long our word counts, in ms
-- ARGV[10] version of the agreement that we have joined (0 = none, or one without a visibility timeout)
-- ARGV[11] '1' = we begin, and hold nothing
-- ARGV[12] policy, ARGV[13] visibility timeout in ms and ARGV[14] max_deliveries that we go by where nothing is agreed on
--
-- Returns {policy, visibility_ms, max_deliveries, recovery ('' where not agreed), retry stream is to be read (1|0),
-- start ID of the group if it was created now ('' if not), groups of the stream, server time in ms, mismatch (''),
-- ms for which a leader is sure to serve the group (0 = none is), recovery by workers begins with us, in our way (1|0), version of the
-- agreement (0 = nothing is agreed on), since when our word stands (the server's ms; 0 = we give none)}.
-- Raises WRONGTYPE where the stream's key holds something else, and, of a worker that begins
-- (ARGV[11]), what Redis says of a command that extensions need and may not have.
-- Fence: none; it only creates what is missing, and removes the fence of a leader that has gone.

--- @prelude
--- @heartbeat

local stream, retry, agreement, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, worker = ARGV[1], ARGV[7]
local consumer, word_ms, joined_version = ARGV[8] or '', ARGV[9], whole_number(ARGV[10], 0)

-- Also the harmless first write: creating and agreeing then work under maxmemory too.
open_for_writing(stream, group)

local function create_group(key, id)
  local reply = redis.pcall('XGROUP', 'CREATE', key, group, id, 'MKSTREAM')
  if type(reply) == 'table' and reply.err then
    return false, not string.find(reply.err, 'BUSYGROUP') and reply or nil
  end
  return true
end

-- A group that was destroyed goes on where it was last known to be, if the stream is still the same one (as in take_over_group.lua).
local function start_id()
  local remembered = redis.call('HGET', agreement, 'last_id')
  if not remembered or redis.call('EXISTS', stream) == 0 then
    return ARGV[2]
  end
  local last_id = info_field(redis.call('XINFO', 'STREAM', stream), 'last-generated-id')
  return is_after(remembered, last_id) and ARGV[2] or remembered
end

local start = start_id()
local created, failed = create_group(stream, start)
if failed then
  return failed
end

if consumer ~= '' and ARGV[11] == '1' then -- before it reads anything, a worker has to know that it can send heartbeats
  probe_heartbeat(stream, group)
end

local served_until = whole_number(redis.call('HGET', agreement, 'served_until'), 0)
local serves_for = whole_number(redis.call('HGET', agreement, 'serves_for'), nil)
if serves_for and served_until > at + serves_for then -- the server's clock was set back: it would lock us out for as long
  served_until = at + serves_for
  redis.call('HSET', agreement, 'served_until', string.format('%.0f', served_until))
end
local is_served = redis.call('HGET', agreement, 'recovery') == 'reaper' and served_until > at
local begins = 0
local claims = ARGV[6] == 'claim'
local wishes = { ARGV[3], ARGV[4], ARGV[5], claims and 'embedded' or ARGV[6] }
if wishes[4] == 'embedded' and not is_served then
  local found = redis.call('HMGET', agreement, 'recovery', 'policy')
  if found[1] ~= 'embedded' then
    redis.call('DEL', fence)
    redis.call('HSET', agreement, 'recovery', 'embedded')
    begins = 1
  end
  if claims and found[2] ~= 'in-place' then
    redis.call('HSET', agreement, 'policy', 'in-place')
    begins = 1
  end
end

-- What is agreed on; what nobody has set is set.
local names = { 'policy', 'visibility_ms', 'max_deliveries', 'recovery' }
local version = whole_number(redis.call('HGET', agreement, 'version'), 0)
local knew = { ARGV[12] or '', ARGV[13] or '', ARGV[14] or '' }
local is_embedded = wishes[4] == 'embedded' and not is_served
local was_lost = joined_version > 0 and not redis.call('HGET', agreement, 'visibility_ms')
local agreed, differing, is_new = {}, {}, begins == 1
for i, name in ipairs(names) do
  local ours = wishes[i]
  local wish = was_lost and knew[i] or ours
  if wish == '' and consumer ~= '' then
    wish = knew[i] or '' -- the scripts that settle need settings; a leader changes them as any others
  end
  if wish ~= '' and redis.call('HSETNX', agreement, name, wish) == 1 then
    is_new = true
  end
  agreed[i] = redis.call('HGET', agreement, name) or ''
  if ours ~= '' and agreed[i] ~= ours and not (claims and name == 'policy') then -- that is the mode's to say
    differing[#differing + 1] = name .. ' ' .. agreed[i] .. ' is agreed, ' .. ARGV[i + 2] .. ' is set'
  end
end
if is_new then
  version = math.max(at, version + 1)
  redis.call('HSET', agreement, 'version', string.format('%.0f', version))
end

local mismatch, since = table.concat(differing, '; '), 0
if consumer ~= '' then
  local field = 'member:' .. consumer
  -- Before 7.2 a read that finds nothing makes none: a word whose consumer is missing is to say that somebody deleted it.
  redis.pcall('XGROUP', 'CREATECONSUMER', stream, group, consumer)
  local former = read_word(redis.call('HGET', agreement, field) or '')
  local visibility = whole_number(agreed[2], nil) or tonumber(knew[2])
  -- What it has proven by another timeout says nothing. While its word counts, nobody has judged by a shorter one: a lowered timeout
  -- waits as long as a word does (group_terms).
  local is_same = former and former.visibility == visibility and (former.version == version or former.until_ms > at)
  since = is_same and math.min(former.since, at) or at
  local limit = whole_number(agreed[3], nil) or tonumber(knew[3])
  redis.call('HSET', agreement, field, written_word({
    version = version, visibility = visibility, max_deliveries = limit, until_ms = at + tonumber(word_ms),
    since = since, mismatch = mismatch ~= '' and 'worker ' .. worker .. ': ' .. mismatch or '',
  }))
end

local read_retry = agreed[1] == 'retry-stream' or redis.call('EXISTS', retry) == 1
if read_retry then
  local _, retry_failed = create_group(retry, '0')
  if retry_failed then
    return retry_failed
  end
end

return { agreed[1], agreed[2], agreed[3], agreed[4], read_retry and 1 or 0, created and start or '',
  #redis.call('XINFO', 'GROUPS', stream), at, mismatch, is_served and served_until - at or 0, begins, version, since }
