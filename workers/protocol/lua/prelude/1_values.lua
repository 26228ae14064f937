-- Shared by every effect script: put in front of its body by workers/protocol/scripts.py.
--
-- Rules that every effect script keeps (a script is atomic, but never rolled back):
--   * check everything first, then write the copy, and only then acknowledge and delete; what is not allowed is found out before
--     the copy (`open_for_writing`);
--   * begin with a no-op write (`open_for_writing`): under maxmemory a script whose first write may use memory fails,
--     and one that has already written goes on, so workers can settle and memory can drain;
--   * the journal is written by pcall: it may never stop an effect;
--   * one bad entry has its own result and never stops its batch.

local MAX_JOB_ID_BYTES = 256
local MAX_CONSUMERS_BYTES = 1024
local MAX_UNPACKED = 7000 -- unpack() fails a little below 8,000
local MAX_WORDS = 20000 -- of a copy: it takes the server 20 ms, and four times that for twice as many

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- `copies`: what follows a copy is asked for as well, by calls that change nothing. Where a right is missing in a script's midst, what
-- was written by then stays: a copy beside its original, and one more each time that it is tried again.
local function open_for_writing(stream, group, copies)
  redis.call('XACK', stream, group, '0-0')
  if copies then
    redis.call('XDEL', stream, '0-0')
  end
end

-- Who writes for the whole group: the leader whose fence stands there, or, without a fence ('' as `own`), any worker of a
-- group that has agreed on embedded recovery. Returns the fence found where the caller may not.
local function refused_by_fence(own, fence, agreement)
  local found = redis.call('GET', fence) or ''
  if own == '' then
    return redis.call('HGET', agreement, 'recovery') ~= 'embedded' and found or nil
  end
  return found ~= own and found or nil
end

-- Returns a field of what XINFO tells (names and values in turn), or nil.
local function info_field(info, name)
  for i = 1, #info, 2 do
    if info[i] == name then
      return info[i + 1]
    end
  end
end

-- Returns the ID of the entry that the group has delivered last, or nil where the group is gone. Raises what Redis says of a missing stream.
local function group_position(source, group)
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', source)) do
    if info_field(info, 'name') == group then
      return info_field(info, 'last-delivered-id')
    end
  end
end

local function entry_ms(entry_id)
  return tonumber(string.match(entry_id, '^%d+')) or 0
end

-- Tells whether entry ID `a` lies behind `b` in a stream.
local function is_after(a, b)
  local a_ms, b_ms = entry_ms(a), entry_ms(b)
  if a_ms ~= b_ms then
    return a_ms > b_ms
  end
  return (tonumber(string.match(a, '%-(%d+)$')) or 0) > (tonumber(string.match(b, '%-(%d+)$')) or 0)
end

-- Nothing lies behind the last possible ID, and Redis rejects a range that begins there.
local LAST_ID = '18446744073709551615-18446744073709551615'

-- Returns the entries behind entry ID `id`, as XRANGE does.
local function entries_behind(stream, id, count)
  return id == LAST_ID and {} or redis.call('XRANGE', stream, '(' .. id, '+', 'COUNT', count)
end

-- Reads a whole number that came from outside; anything else is `default`. 15 digits are exact in Lua.
local function whole_number(value, default)
  if type(value) ~= 'string' or #value > 15 or not string.find(value, '^%d+$') then
    return default
  end
  return tonumber(value)
end

-- As `whole_number`, for what is only passed on: number to text and back costs more than all the rest of an event.
local function whole_digits(value, default)
  if type(value) ~= 'string' or #value > 15 or not string.find(value, '^%d+$') then
    return default
  end
  return string.match(value, '^0*(%d+)$')
end

-- Visits the registrations of workers (`member:<consumer>` in the group settings) with the field's name, and the end of the registration
-- in the server's ms, nil where the value is none. A registration is this moment, a comma, and how the worker's settings differ.
local function each_registration(agreement, visit)
  local fields = redis.call('HGETALL', agreement)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 7) == 'member:' then
      visit(fields[i], tonumber(string.match(fields[i + 1], '^(%d+),')))
    end
  end
end

local digits_of = {}
local function small_digits(number)
  local text = digits_of[number]
  if not text then
    text = string.format('%.0f', number)
    digits_of[number] = text
  end
  return text
end
