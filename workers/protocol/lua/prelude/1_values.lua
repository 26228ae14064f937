-- Shared by the scripts: stands for `--- @prelude`. A script gets the functions that it uses (workers/protocol/scripts.py).
--
-- A script is atomic, but Redis never rolls it back. So each script checks first, then writes the copy, then acknowledges. Its first write
-- needs no memory, because a full server lets a script go on that has written. That write also needs the permissions for all that follows a
-- copy. The journal never stops an effect. One bad entry has a result of its own, and never stops its batch. An entry that cannot be copied
-- is held: it stays pending, and the reply says why.
--
-- Functions that act for a group use these names: source, stream, retry, dead, settings, schedule, quarantine, journal, group, maxlen. A
-- script declares those that it needs in front of the mark, or lets `--- @keys` do it.

local time = redis.call('TIME')
local at = time[1] * 1000 + math.floor(time[2] / 1000) -- the server's time in ms

-- Returns a number in the form that Redis accepts. Without this, Lua would write 1e12 with an exponent.
local digits_of = {}
local function digits(number)
  local text = digits_of[number]
  if not text then
    text = string.format('%d', number)
    digits_of[number] = text
  end
  return text
end

-- Reads a whole number that came from outside; anything else is `default`. 15 digits are exact in Lua.
local function whole_number(value, default)
  return type(value) == 'string' and #value <= 15 and string.find(value, '^%d+$') and tonumber(value) or default
end

-- As `whole_number`, for a number that is only passed on: to convert it twice costs more than all the rest of an event.
local function whole_digits(value, default)
  return type(value) == 'string' and #value <= 15 and string.find(value, '^%d+$') and string.match(value, '^0*(%d+)$') or default
end

local function entry_ms(entry_id)
  return tonumber(string.match(entry_id, '^%d+')) or 0
end

local function is_after(a, b)
  local a_ms, a_n, b_ms, b_n = string.match(a .. ' ' .. b, '^(%d+)-(%d+) (%d+)-(%d+)$')
  return tonumber(a_ms) > tonumber(b_ms) or a_ms == b_ms and tonumber(a_n) > tonumber(b_n)
end

-- Returns the beginning of a range behind entry ID `id`. '' = behind the last ID of all, which a producer may choose, there is none.
local function behind(id)
  return id ~= '18446744073709551615-18446744073709551615' and '(' .. id or ''
end

-- Returns the entries behind entry ID `id`, as XRANGE does.
local function entries_behind(key, id, count)
  local start = behind(id)
  return start ~= '' and redis.call('XRANGE', key, start, '+', 'COUNT', count) or {}
end

-- Returns a field of a reply of XINFO (names and values in turn), or nil.
local function info_field(info, name)
  for i = 1, #info, 2 do
    if info[i] == name then
      return info[i + 1]
    end
  end
end
