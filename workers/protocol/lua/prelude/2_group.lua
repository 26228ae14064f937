-- A group: its position, its settings, its pending entries, and the registrations of its workers.

-- Returns the ID of the entry that the group has delivered last, or nil if the group, or its stream, is missing.
local function group_position(key, name)
  for _, info in ipairs(redis.call('EXISTS', key) == 1 and redis.call('XINFO', 'GROUPS', key) or {}) do
    if info_field(info, 'name') == name then
      return info_field(info, 'last-delivered-id')
    end
  end
end

local READY_MS = 1000000000 -- an entry that is idle for longer is ready in place, and has no owner. Readers get it by CLAIM
local RETURNED = 'returned-by-reaper' -- has the entries that a read took by mistake, until their worker's next heartbeat (return_taken.lua)
local OUR_CONSUMER = '~' .. string.rep('[0-9a-f]', 12) .. '$'

-- Returns the row of the pending entries list, {ID, consumer, idle ms, times delivered}, or nil.
local function pending_row(entry_id)
  return redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1]
end

local function entry_of(entry_id)
  return redis.call('XRANGE', source, entry_id, entry_id)[1]
end

-- Returns whether an entry is ready in place. It was given back, by XNACK (it has no owner then) or by making it old.
local function is_given_back(row)
  return row[2] == '' or row[3] >= READY_MS
end

-- A value that was lowered lately still counts as it was before (`former_*`).
local function count_former(in_force)
  local counts = in_force.former_left > 0
  in_force.visibility_ms = math.max(in_force.own_visibility_ms, counts and in_force.former_visibility_ms or 0)
  in_force.max_deliveries = math.max(1, in_force.own_max_deliveries, counts and in_force.former_max_deliveries or 0)
end

-- Returns the group settings, and the beat (9_beat.lua), or nil if the group has none.
local function read_settings()
  local values = redis.call('HMGET', settings, 'policy', 'recovery', 'paused', 'visibility_ms', 'max_deliveries', 'former_left',
    'former_visibility_ms', 'former_max_deliveries', 'beat', 'unbroken', 'gap', 'token')
  local visibility = whole_number(values[4], 0)
  if not values[1] or visibility == 0 then
    return nil
  end
  local in_force = { policy = values[1], recovery = values[2], paused = values[3] == '1', own_visibility_ms = visibility,
    own_max_deliveries = whole_number(values[5], 0), former_left = whole_number(values[6], 0),
    former_visibility_ms = whole_number(values[7], 0), former_max_deliveries = whole_number(values[8], 0),
    beat = whole_number(values[9], 0), unbroken = whole_number(values[10], 0), gap = whole_number(values[11], 0), token = values[12] }
  count_former(in_force)
  return in_force
end

local NO_SETTINGS = 'NOSETTINGS the group has no settings: join it first'

-- The first write of a script. It needs no memory, so a full server lets the script go on.
local function open_for_writing(key, name)
  redis.call('XACK', key, name, '0-0')
end

-- The same for a script that copies jobs. It needs the permissions for all that follows a copy. If one were missing then, each attempt
-- would leave one more copy.
local function open_for_copies()
  open_for_writing(source, group)
  redis.call('XDEL', source, '0-0')
  redis.call('HDEL', quarantine, '')
end

-- Returns whether the caller may write for the whole group. A replica needs the lease (`holder` is its whole value). Without one ('') the
-- recovery of the group must be embedded. Also returns the lease.
local function may_serve(holder, lease, recovery)
  local found = redis.call('GET', lease) or ''
  return holder == '' and recovery == 'embedded' or holder ~= '' and found == holder, found
end

-- Visits the registrations of workers (`registration:<consumer>` in the group settings) with the consumer, and the end of the registration in
-- the server's ms, nil if the value is invalid. A registration is this moment, a comma, and how the worker's settings differ.
local function each_registration(settings, visit)
  local fields = redis.call('HGETALL', settings)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 13) == 'registration:' then
      visit(string.sub(fields[i], 14), tonumber(string.match(fields[i + 1], '^(%d+),')))
    end
  end
end
