-- pending, overdue -> ready | quarantined | dead, or (embedded) pending for the caller
--
-- KEYS[1] to KEYS[8] as in keys.lua
-- KEYS[9] lease  {orders}:lease:billing  string
-- ARGV[1] group  ARGV[2] journal's MAXLEN  ARGV[3] the caller's lease, its whole value ('' = embedded)  ARGV[4] token
-- ARGV[5] payload bytes after which the call ends
-- Holder:    ARGV[6…] IDs of entries that may be overdue, ascending
-- Embedded:  ARGV[6] consumer  ARGV[7] where the page begins ('-' or '(ID')  ARGV[8] entries of a page  ARGV[9] room: how many it may claim.
--            The page ends when the room is used up. Without any room, overdue entries are made ready.
--            ARGV[10…] entries of the caller that it could not settle. It runs them no more, so they are recovered like those of others.
--
-- Returns {'ok', where to go on ('' = the end; replica: the first ID that was put off), {ID, ms until it is due, in
-- turns}, {ID, consumer, why it is held, in turns}, events as in the journal, {ID, traceparent, tracestate, generation} of each traced job that
-- has left its delivery, {ID, fields, times delivered} of each claimed entry},
-- or {'fenced', lease found}, {'unknown'} (the group has no settings), {'paused'}, {'waits', ms, last gap in ms} (the beat): the call had no effect.
-- Fence: the whole value is compared, or recovery is `embedded` (declining_reply).

--- @keys
--- @prelude

local holder, token, budget = ARGV[3], ARGV[4], tonumber(ARGV[5])
local is_embedded, first = holder == '', 6
local in_force = read_settings()
local declined = declining_reply(in_force, holder, KEYS[9], 'recover', token)
if declined then
  return declined
end
open_for_copies()
probe_heartbeat(source)
note_beat(in_force)
local waits_ms = recovery_waits_ms(in_force)

local LONGEST_VISIBILITY_MS = 604800000 -- seven days: the longest timeout that a job may ask for
local due_in, held, bytes = {}, {}, 0
in_force.recovers = true
local consumer, room = is_embedded and ARGV[6], is_embedded and tonumber(ARGV[9]) or 0
local unsettled = {}
for i = 10, is_embedded and #ARGV or 0 do
  unsettled[ARGV[i]] = true
end

local entries, READ = {}, 100 -- entries that are next to each other are read together
local function payload_of(row)
  return entries[row[1]] or entry_of(row[1])
end

local taken, ids_by_times = {}, {}
local function take(row)
  if #taken == room then
    return false
  end
  local entry, times = payload_of(row), row[4] + 1
  local ids = ids_by_times[times] or {}
  entry[3], taken[#taken + 1] = times, entry
  ids[#ids + 1], ids_by_times[times] = row[1], ids
  return true
end

-- Restarts the idle time of a delivery for which Redis reports 0. Either it was delivered just now, so this has no effect, or its delivery
-- time lies in the future because the clock was set back, and Redis would report 0 until then. An entry without a payload is left alone:
-- from Redis 7.0 on, XCLAIM would drop it from the pending entries list without a report.
local function start_over(row)
  if row[3] == 0 and payload_of(row) then
    redis.call('XCLAIM', source, group, row[2], 0, row[1], 'JUSTID')
  end
end

local function look_at(row)
  local idle, rests = row[3], is_given_back(row)
  if row[2] == consumer and not rests and not unsettled[row[1]] then
    return -- it is in flight there
  end
  local entry = (rests or waits_ms == 0 and idle >= in_force.visibility_ms) and payload_of(row)
  local job, visibility = entry and open_job(row[1], entry[2]), in_force.visibility_ms
  if job and rests and in_force.policy == 'in-place' and count_of(job, row[4], in_force.max_deliveries) < in_force.max_deliveries then
    due_in[#due_in + 1], due_in[#due_in + 2] = row[1], visibility -- ready where it is
    return
  elseif waits_ms > 0 then
    return start_over(row)
  end
  if job then
    bytes, visibility = bytes + job.bytes, math.max(visibility, math.min(job.visibility_ms, LONGEST_VISIBILITY_MS))
  end
  if not rests and idle < visibility then
    start_over(row) -- the call may come when recovery does not wait any more
    due_in[#due_in + 1], due_in[#due_in + 2] = row[1], visibility - idle
    return
  end
  local ok, why = pcall(recover, row, job, in_force, take)
  if not ok or why then
    local n = #held
    held[n + 1], held[n + 2], held[n + 3] = row[1], row[2], type(why) == 'table' and why.err or tostring(why)
  end
end

-- Returns the pending rows of the page, or of the named entries. In place, the last one that is made ready is read first.
local function rows_to_look_at()
  if is_embedded then
    return redis.call('XPENDING', source, group, ARGV[7], '+', ARGV[8])
  end
  local by_id, rows = {}, {}
  for i = first, #ARGV, READ do
    for _, row in ipairs(redis.call('XPENDING', source, group, ARGV[i], ARGV[math.min(i + READ - 1, #ARGV)], READ)) do
      by_id[row[1]] = row
    end
  end
  for i = first, #ARGV do
    local row = by_id[ARGV[i]] or pending_row(ARGV[i])
    if row then
      table.insert(rows, in_force.policy == 'in-place' and 1 or #rows + 1, row)
    end
  end
  return rows
end

local page, cursor = rows_to_look_at(), ''
for i, row in ipairs(page) do
  if bytes > budget then
    cursor = is_embedded and behind(page[i - 1][1]) or row[1]
    break
  elseif i % READ == 1 then
    local low, high = row[1], page[math.min(i + READ - 1, #page)][1]
    if is_after(low, high) then
      low, high = high, low
    end
    for _, entry in ipairs(redis.call('XRANGE', source, low, high, 'COUNT', READ)) do
      entries[entry[1]] = entry
    end
  end
  if not is_left[row[1]] then
    look_at(row)
  end
  if room > 0 and #taken == room then
    cursor = behind(row[1])
    break
  end
end
if is_embedded and cursor == '' and #page == tonumber(ARGV[8]) then
  cursor = behind(page[#page][1])
end
if waits_ms > 0 then
  return { 'waits', waits_ms, in_force.gap }
end
local broken = finish(in_force)
for times, ids in pairs(ids_by_times) do
  local n = #ids
  ids[n + 1], ids[n + 2], ids[n + 3] = 'RETRYCOUNT', times, 'JUSTID'
  redis.call('XCLAIM', source, group, consumer, 0, unpack(ids))
end
if recovered > 0 then
  redis.pcall('HINCRBY', settings, 'recovered', recovered)
end
local told = write_events({ 'mode', is_embedded and 'embedded' or 'reaper', 'token', token, 'visibility_ms', digits(in_force.visibility_ms) })
return broken or { 'ok', cursor, due_in, held, told, traced, taken }
