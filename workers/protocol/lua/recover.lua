-- pending, overdue -> ready | quarantined | dead
--
-- KEYS[1] to KEYS[8] as in keys.lua
-- KEYS[9] lease  {orders}:lease:billing  string
-- ARGV[1] group  ARGV[2] journal's MAXLEN  ARGV[3] the caller's lease, its whole value ('' = embedded)  ARGV[4] token
-- ARGV[5] payload bytes after which the call ends
-- Leader:    ARGV[6…] IDs of entries that may be overdue, ascending
-- Embedded:  ARGV[6] consumer  ARGV[7] where the page begins ('-' or '(ID')  ARGV[8] entries of a page
--
-- Returns {'ok', server time in ms, where to go on ('' = the end; replica: the first ID that was put off), {ID, ms until it is due, in
-- turns}, {ID, consumer, why it is held, in turns}, events as in the journal, {ID, traceparent, tracestate, generation} of each traced job that
-- has left its delivery},
-- or {'stale', lease found}, {'unknown'} (the group has no settings), {'paused'}, {'waits', ms, last gap in ms} (the beat): nothing was done.
-- Fence: the whole value is compared, or recovery is `embedded` (refusal_of).

--- @keys
--- @prelude

local holder, token, budget = ARGV[3], ARGV[4], tonumber(ARGV[5])
local is_embedded, first, step, last = holder == '', 6, 1, #ARGV
local in_force = read_settings()
local refusal = refusal_of(in_force, holder, KEYS[9], 'recover', token)
if refusal then
  return refusal
end
open_for_copies()
probe_heartbeat(source)
note_beat(in_force)
local waits_ms = recovery_waits_ms(in_force)

local LONGEST_VISIBILITY_MS = 604800000 -- seven days: of what a job asks for itself
local due_in, held, bytes = {}, {}, 0
in_force.recovers = true
local consumer = is_embedded and ARGV[6]

-- Entries that are next to each other are read together.
local rows, entries, READ = {}, {}, 100
local function read_payloads(low, high)
  for _, entry in ipairs(redis.call('XRANGE', source, low, high, 'COUNT', READ)) do
    entries[entry[1]] = entry
  end
end

-- Restarts the idle time of a delivery for which Redis reports 0. Either it was delivered just now, which changes nothing, or its delivery
-- time lies in the future because the clock was set back, and Redis would report 0 until then. An entry without a payload is left alone:
-- from Redis 7.0 on, XCLAIM would drop it from the pending entries list unseen.
local function start_over(row)
  if row[3] == 0 and entry_of(row[1]) then
    redis.call('XCLAIM', source, group, row[2], 0, row[1], 'JUSTID')
  end
end

local function look_at(row)
  local idle, rests = row[3], is_given_back(row)
  if row[2] == consumer and not rests then
    return -- in hand here
  end
  local stays = rests and in_force.policy == 'in-place' and row[4] < in_force.max_deliveries
  if stays and (entries[row[1]] or entry_of(row[1])) then -- ready where it is
    due_in[#due_in + 1], due_in[#due_in + 2] = row[1], in_force.visibility_ms
    return
  elseif waits_ms > 0 then
    return start_over(row)
  end
  local entry = (rests or idle >= in_force.visibility_ms) and (entries[row[1]] or entry_of(row[1]))
  local job, visibility = entry and open_job(row[1], entry[2]), in_force.visibility_ms
  if job then
    bytes, visibility = bytes + job.bytes, math.max(visibility, math.min(job.visibility_ms, LONGEST_VISIBILITY_MS))
  end
  if not rests and idle < visibility then
    start_over(row) -- the call may come when recovery does not wait any more
    due_in[#due_in + 1], due_in[#due_in + 2] = row[1], visibility - idle
    return
  end
  local ok, why = pcall(recover, row, job, in_force)
  if not ok or why then
    local n = #held
    held[n + 1], held[n + 2], held[n + 3] = row[1], row[2], type(why) == 'table' and why.err or tostring(why)
  end
end

local cursor = ''
local function look_at_page()
  local page = redis.call('XPENDING', source, group, ARGV[7], '+', ARGV[8])
  for i, row in ipairs(page) do
    if i % READ == 1 then
      read_payloads(row[1], page[math.min(i + READ - 1, #page)][1])
    end
    look_at(row)
    if bytes > budget or i == #page and i == tonumber(ARGV[8]) then
      cursor = page_behind(row[1])
      return
    end
  end
end

local function look_at_named()
  if in_force.policy == 'in-place' then -- the last that is made ready is read first
    first, last, step = last, first, -1
  end
  for i = first, last, step do
    if (i - first) % READ == 0 then
      local other = math.min(#ARGV, math.max(6, i + step * (READ - 1)))
      local low, high = ARGV[math.min(i, other)], ARGV[math.max(i, other)]
      for _, row in ipairs(redis.call('XPENDING', source, group, low, high, READ)) do
        rows[row[1]] = row
      end
      read_payloads(low, high)
    end
    if bytes > budget then
      cursor = ARGV[i]
      return
    end
    local row = rows[ARGV[i]] or pending_row(ARGV[i])
    if row and not is_left[row[1]] then
      look_at(row)
    end
  end
end

if is_embedded then
  look_at_page()
else
  look_at_named()
end
if waits_ms > 0 then
  return { 'waits', waits_ms, in_force.gap }
end
local broken = finish(in_force)
if recovered > 0 then
  redis.pcall('HINCRBY', settings, 'recovered', recovered)
end
local told = write_events({ 'mode', is_embedded and 'embedded' or 'reaper', 'token', token, 'visibility_ms', digits(in_force.visibility_ms) })
return broken or { 'ok', at, cursor, due_in, held, told, traced }
