-- Now and then: remembers where the group stands, forgets the words of workers that have gone, deletes consumers that hold
-- nothing and were silent, and sees whether the group is still the one it was, and whose consumer was deleted by somebody. By the
-- leader (embedded: by any worker).
--
-- A word whose consumer is gone says that somebody else deleted it: workers of ours, and we, take both away. Once it counts no more,
-- its worker is dead, or has no consumer to come back to: what it held went with it. That is told once, and noted in the word (in
-- the place of what its worker's settings differ in, which concerns nobody then).
--
-- Others give no word. Of a consumer that is not a worker of ours and holds something it is noted who saw that (`holds:<consumer>`,
-- the token). Where it is gone, a leader that saw it itself tells of each delivery (put_back.lua); nobody else knows which they were: then it is told
-- that it is gone. Our own that holds what was put back is made anew below, so that no leader ever misses it: told of, too, and a leader that
-- saw what it held puts that back once more.
--
-- A group is known by a consumer of ours, the one that gets what is put back. Where it was seen before (`marked`, the moment),
-- is not there, and nothing is pending since before that moment (nor any consumer silent for longer, or without a job since then), somebody has destroyed the group, and made it again without a
-- word to anybody (XGROUP CREATE). That is noted as by those who say so (`made`, `made_from`).
--
-- KEYS[1] stream     orders                   stream
-- KEYS[2] fence      {orders}:fence:billing   string
-- KEYS[3] agreement  {orders}:group:billing   hash
-- KEYS[4] journal    {orders}:journal         stream
-- KEYS[5] retry      {orders}:retry:billing   stream
-- KEYS[6] notes      {orders}:notes:billing   hash: of what is given back where it is (prelude)
-- KEYS[7] schedule   {orders}:scheduled:billing   sorted set: notes of what that names are kept (may be left out)
-- ARGV[1] fence of the caller ('' = an embedded worker's, which has none)  ARGV[2] group  ARGV[3] silence in ms after which a consumer goes ('' = never)
-- ARGV[4] journal: '1' = write events  ARGV[5] journal's MAXLEN  ARGV[6] the caller's token
-- ARGV[7] who the caller is  ARGV[8] '1' = the reply to his last call was lost: what that told is told again (may be left out)
--
-- Returns {'ok', consumers deleted, was the group made again since the last look: 0 no, 1 by one of ours, 2 by
-- somebody else; consumers that somebody else has deleted, told for the first time; names of the consumers deleted…, and of
-- those…} or {'stale', fence found}.
-- Fence: the whole value is compared; without one, the group must have agreed on embedded recovery. A consumer with pending entries is never deleted: they would go with it.

--- @prelude
--- @heartbeat

local stream, fence, agreement, journal, retry, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local schedule = KEYS[7]
local own, group, silence = ARGV[1], ARGV[2], tonumber(ARGV[3])
local write_journal, maxlen, token = ARGV[4] == '1', ARGV[5], ARGV[6]
local MOST = 1000 -- consumers that are deleted, or told of, in one call; the others follow with the next
local NOTES = 1000 -- looked at in one call

local found = refused_by_fence(own, fence, agreement)
if found then
  return { 'stale', found }
end
redis.call('HDEL', agreement, '') -- harmless, and a write: what follows then works under maxmemory

local position
for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  if info_field(info, 'name') == group then
    position = info_field(info, 'last-delivered-id')
    redis.call('HSET', agreement, 'last_id', position)
  end
end

local at = now_ms()
-- While recovery waits, a step of the clock may be all that made consumers look silent, and ended words.
local waits = recovery_waits_ms(read_beat(agreement, at), at, 0) > 0
if waits then
  silence = nil
end
local deleted, held_by, restored, longest = {}, {}, nil, 0
local HOLDS = 'holds:'
local is_there, holders, holds = {}, {}, {} -- holders: those who give no word
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local name, pending = info_field(info, 'name'), info_field(info, 'pending')
  longest = math.max(longest, info_field(info, 'idle'), info_field(info, 'inactive') or 0) -- a read that finds nothing ends the first one alone
  is_there[name] = true
  if pending > 0 and not string.find(name, OUR_CONSUMER) then
    holders[#holders + 1] = name
    holds[name] = true
  end
  if name == RESTORED_CONSUMER then
    restored = pending
  elseif name == READY_CONSUMER or name == WAITING_CONSUMER then
    held_by[name] = pending
  elseif silence and pending == 0 and #deleted < MOST and info_field(info, 'idle') > silence then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, name)
    redis.call('HDEL', agreement, 'member:' .. name)
    deleted[#deleted + 1] = name
  else
    held_by[name] = pending
  end
end

local absent = {}
local function tell_gone(consumer, tail)
  absent[#absent + 1] = consumer
  if write_journal then
    journal_event(journal, maxlen, 'lost_consumer', '', '{"v":1,"group":' .. json_string(group)
      .. (own == '' and ',"mode":"embedded"' or ',"mode":"reaper","token":' .. token) .. ',"consumer":' .. json_string(consumer)
      .. tail .. '}')
  end
end

-- Removes the words that have counted no more for long, of consumers that hold nothing: whoever wanted to see them has. One whose
-- consumer is missing is kept until that is told, else its deliveries would have gone in silence.
local WORD_KEPT_MS, TOLD = 600000, 'told' -- longer than from one look at the house to the next
each_word(agreement, function(field, word)
  local consumer = string.sub(field, 8)
  local held, ended_ms = held_by[consumer], word and not waits and at - word.until_ms or -1
  if not word or (ended_ms >= WORD_KEPT_MS and (held == 0 or (not held and word.mismatch == TOLD))) then
    redis.call('HDEL', agreement, field)
  elseif not held and ended_ms >= 0 and word.mismatch ~= TOLD and #absent < MOST then
    word.mismatch = TOLD
    redis.call('HSET', agreement, field, written_word(word))
    tell_gone(consumer, ',"visibility_ms":' .. string.format('%.0f', word.visibility)
      .. ',"until_ms":' .. string.format('%.0f', word.until_ms))
  end
end)

-- Forgets notes of entries that somebody has settled without a word to us: a page of them a call, around and around. What the schedule
-- names and nobody has may have been dropped with the consumer that held it: its note tells when it is due (`waiting_there`).
local function forget_notes()
  local found = redis.pcall('HSCAN', notes, redis.call('HGET', agreement, 'notes_seen') or '0', 'COUNT', NOTES)
  if found.err then
    return
  end
  for i = 1, #found[2], 2 do
    local entry_id, is_known = found[2][i], false
    for _, source in ipairs({ stream, retry }) do
      local rows = redis.pcall('XPENDING', source, group, entry_id, entry_id, 1)
      is_known = is_known or (not rows.err and #rows > 0)
        or (schedule and type(redis.pcall('ZSCORE', schedule, member_of(source, stream, entry_id))) == 'string')
    end
    if not is_known then
      redis.call('HDEL', notes, entry_id)
    end
  end
  if found[1] == '0' then
    redis.call('HDEL', agreement, 'notes_seen')
  else
    redis.call('HSET', agreement, 'notes_seen', found[1])
  end
end
forget_notes()

-- Tells whether nothing is pending that was idle for longer, and no consumer either. What is ready where it is is said to be
-- idle for ever.
local function nothing_is_older(idle)
  if longest > idle then
    return false
  end
  local rows = redis.call('XPENDING', stream, group, 'IDLE', string.format('%.0f', math.max(0, idle)), '-', '+', 100)
  for _, row in ipairs(rows) do
    if laid_aside_as(row[2]) ~= 'ready' then
      return false
    end
  end
  return #rows < 100
end

local made = redis.call('HMGET', agreement, 'made', 'made_seen')
local remade = made[2] and (made[1] or '0') ~= made[2] and 1 or 0 -- by one of ours, since the last look
if position and not restored then
  local seen = whole_number(redis.call('HGET', agreement, 'marked'), nil)
  if seen and nothing_is_older(at - seen) then
    made_anew(agreement, position)
    remade = 2
  end
end

-- What a group that is another one by now held is told as a whole.
local function look_for_holders()
  local fields = redis.call('HGETALL', agreement)
  for i = 1, #fields, 2 do
    local consumer = string.sub(fields[i], #HOLDS + 1)
    if string.sub(fields[i], 1, #HOLDS) == HOLDS and not holds[consumer] and #absent < MOST then
      local is_watched = own ~= '' and fields[i + 1] == token and consumer ~= RESTORED_CONSUMER
      if remade == 0 and not is_there[consumer] and not is_watched then
        tell_gone(consumer, '')
      end
      redis.call('HDEL', agreement, fields[i])
    end
  end
  for _, consumer in ipairs(holders) do
    redis.call('HSET', agreement, HOLDS .. consumer, token)
  end
end
look_for_holders()

-- It is made anew each time: whoever clears away consumers that were silent for long never comes upon it. Where we may not make
-- it, or there is no memory, nothing can be told from its absence.
local is_marked = position and (restored or 0) > 0
if position and not is_marked then
  redis.pcall('XGROUP', 'DELCONSUMER', stream, group, RESTORED_CONSUMER)
  is_marked = type(redis.pcall('XGROUP', 'CREATECONSUMER', stream, group, RESTORED_CONSUMER)) == 'number'
end
redis.call('HSET', agreement, 'made_seen', redis.call('HGET', agreement, 'made') or '0')

-- What is told once is noted until whoever was told comes again: the reply may be lost.
local TOLD_TO, EACH = 'house_told', '%z([^%z]*)'
local caller = ARGV[7] or ''
local before = redis.call('HGET', agreement, TOLD_TO) or ''
local was_told = before ~= '' and string.match(before, '^[^%z]*') == caller
if ARGV[8] == '1' and was_told then
  local tell = string.gmatch(before, EACH)
  remade = math.max(remade, tonumber(tell()) or 0)
  for consumer in tell do
    absent[#absent + 1] = consumer
  end
end
if remade > 0 or absent[1] then
  redis.call('HSET', agreement, TOLD_TO, table.concat({ caller, remade, unpack(absent) }, '\0'))
elseif was_told then
  redis.call('HDEL', agreement, TOLD_TO)
end
if is_marked then
  redis.call('HSET', agreement, 'marked', string.format('%.0f', at))
else
  redis.call('HDEL', agreement, 'marked')
end
local reply = { 'ok', #deleted, remade, #absent }
for _, names in ipairs({ deleted, absent }) do
  for _, name in ipairs(names) do
    reply[#reply + 1] = name
  end
end
return reply
