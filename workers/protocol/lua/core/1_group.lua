-- Shared by the scripts that move jobs: stands for `--- @core`. Each script takes the same keys, in this order.
--
-- KEYS[1] source      orders, or {orders}:retry:billing  stream that an entry was read from
-- KEYS[2] stream      orders                       stream
-- KEYS[3] retry       {orders}:retry:billing       stream
-- KEYS[4] dead        {orders}:dead:billing        stream
-- KEYS[5] settings    {orders}:group:billing       hash
-- KEYS[6] schedule    {orders}:scheduled:billing   sorted set
-- KEYS[7] quarantine  {orders}:suspects:billing    hash: released jobs, by entry ID
-- KEYS[8] journal     {orders}:journal             stream
-- ARGV[1] group  ARGV[2] journal's MAXLEN ('0' = write none)
--
-- A script is atomic, but Redis never rolls it back. So each script checks first, then writes the copy, then acknowledges. Its first write
-- needs no memory, because a full server lets a script go on that has written. That write also asks for the rights to all that follows a
-- copy. The journal never stops an effect. An entry that cannot be copied is held: it stays pending, and the reply says why.

local source, stream, retry, dead, settings, schedule, quarantine, journal = unpack(KEYS)
local group, maxlen = ARGV[1], tonumber(ARGV[2])

local READY_MS = 1000000000 -- an entry that is idle for longer is ready where it is, and nobody's. Readers ask for it by CLAIM
local RETURNED = 'returned-by-reaper' -- holds what a read took by mistake, until its worker's next heartbeat (return_taken.lua)
local OUR_CONSUMER = '%.' .. string.rep('%x', 12) .. '$'

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local at = now_ms()

-- Returns a number as Redis takes it: handed over as it is, 1e12 would be written with an exponent.
local digits_of = {}
local function digits(number)
  local text = digits_of[number]
  if not text then
    text = string.format('%.0f', number)
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

local function is_after(a, b)
  local a_ms, a_n, b_ms, b_n = string.match(a .. ' ' .. b, '^(%d+)-(%d+) (%d+)-(%d+)$')
  return tonumber(a_ms) > tonumber(b_ms) or a_ms == b_ms and tonumber(a_n) > tonumber(b_n)
end

-- Returns where the page behind an entry begins, '' = there is none: Redis rejects a range that begins behind the last possible ID.
local function page_behind(entry_id)
  return entry_id ~= '18446744073709551615-18446744073709551615' and '(' .. entry_id or ''
end

-- Returns the row of the pending entries list, {ID, consumer, idle ms, times delivered}, or nil.
local function pending_row(entry_id)
  return redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1]
end

local function entry_of(entry_id)
  return redis.call('XRANGE', source, entry_id, entry_id)[1]
end

local function named(info)
  local fields = {}
  for i = 1, #info, 2 do
    fields[info[i]] = info[i + 1]
  end
  return fields
end

-- Returns the group's position in a stream, or nil: what lies behind it is not delivered yet.
local function last_delivered(key)
  for _, info in ipairs(redis.call('EXISTS', key) == 1 and redis.call('XINFO', 'GROUPS', key) or {}) do
    local fields = named(info)
    if fields.name == group then
      return fields['last-delivered-id']
    end
  end
end

-- Tells whether an entry is ready where it is: somebody gave it back, by XNACK (nobody has it then) or by making it old.
local function is_given_back(row)
  return row[2] == '' or row[3] >= READY_MS
end

-- Returns the group settings, or nil if the group has none. A value that was lowered lately still counts as it was before (`former_*`).
local function read_settings()
  local names = { 'policy', 'visibility_ms', 'max_deliveries', 'former_until', 'former_visibility_ms', 'former_max_deliveries',
    'recovery', 'paused' }
  local values, agreed = redis.call('HMGET', settings, unpack(names)), {}
  for i, name in ipairs(names) do
    agreed[name] = i > 1 and i < 7 and whole_number(values[i], 0) or values[i] or nil
  end
  if not agreed.policy or agreed.visibility_ms == 0 then
    return nil
  end
  agreed.max_deliveries = math.max(1, agreed.max_deliveries)
  if agreed.former_until > at then
    agreed.visibility_ms = math.max(agreed.visibility_ms, agreed.former_visibility_ms)
    agreed.max_deliveries = math.max(agreed.max_deliveries, agreed.former_max_deliveries)
  end
  return agreed
end

local NO_SETTINGS = 'NOSETTINGS the group has no settings: join it first'

-- The first write of a script.
local function open_for_writing()
  redis.call('XACK', source, group, '0-0')
  redis.call('XDEL', source, '0-0')
  redis.call('HDEL', quarantine, '')
end

-- The kept reply. A worker numbers its settlements, and sends the next one when the last one is answered. A call that is sent again has
-- its number, and gets the reply that was kept, so nothing is done twice. Returns nil for a new call.
local function kept_reply(consumer, caller, number)
  local who, last, answer = string.match(redis.call('HGET', settings, 'settled:' .. consumer) or '', '^(%S+) (%d+) (.*)$')
  if who == caller and tonumber(number) <= tonumber(last) then
    return number == last and cmsgpack.unpack(answer) or redis.error_reply('OLDCALL a later call was carried out')
  end
end

local function keep_reply(consumer, caller, number, reply)
  redis.call('HSET', settings, 'settled:' .. consumer, caller .. ' ' .. number .. ' ' .. cmsgpack.pack(reply))
end
