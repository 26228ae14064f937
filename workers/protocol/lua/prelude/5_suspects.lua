-- Probation: a suspect that was let out stays one, whatever way it takes, until it is settled. Its entries say so in
-- `reaper.suspect`; only release_suspects.lua makes it ready, whoever gives it back parks it again. The field alone says that
-- and no more, since anybody may write it: whom a crash convicts is judged by the hash of the suspects that are out. A value
-- there is `stream` or `retry`; how often the suspect crashed in company before; from when its delivery has been seen on, that
-- delivery's count and moment (`stream,1,1,1700000000000`); '+' and its count where its worker has shown that it has got it; and '!'
-- where it has crashed in company now.
local SUSPECT_SCORE = 4503599627370496 -- 2^52: behind every due time, in order of parking; the first ones have just this

local function read_suspect(value)
  local company, times, since = string.match(value, '^%a+,(%d+),?(%d*),?(%d*)')
  return {
    kind = string.match(value, '^%a+'),
    company = whole_number(company, 0),
    arrived = whole_number(string.match(value, '%+(%d+)'), nil),
    crashed = string.sub(value, -1) == '!',
    times = whole_number(times, nil),
    since = whole_number(since, nil),
  }
end

local function written_suspect(suspect)
  return string.format('%s,%.0f', suspect.kind, suspect.company)
    .. (suspect.times and suspect.since and string.format(',%.0f,%.0f', suspect.times, suspect.since) or '')
    .. (suspect.arrived and string.format('+%.0f', suspect.arrived) or '') .. (suspect.crashed and '!' or '')
end

-- Tells whether somebody lets suspects out: a leader that serves the group still, or its embedded workers. In any other group
-- what is parked would wait for ever. The arguments stand in the agreement.
local function has_gate(recovery, served_until, at)
  return recovery == 'embedded' or (recovery == 'reaper' and whole_number(served_until, 0) > at)
end

-- Parks a suspect; returns whether, and else why not.
local function park_suspect(schedule, job, score, deliveries, consumers, waits)
  if not may_be_ready(job, 0) then -- parked, it could never be made ready, and would block those behind it
    return false, 'too many fields'
  end
  job.suspect = job.suspect or 0
  local packed = pack_job('suspect', job, deliveries, consumers, waits)
  local reply = redis.pcall('ZADD', schedule, string.format('%.0f', score), packed)
  if type(reply) == 'table' then
    return false, reply.err
  end
  return true
end

-- Adds an entry; returns its ID, or nil and the error's text.
local add_entry
do
  local MARKS = 32 -- words that a job may gain where it waits, or is given up: nothing that was made ready once is too large for it

  -- Of more words than unpack() gives: it has given the last ones, and the `left` first ones are put in front of these, a few at a time.
  -- Calls between functions of Lua's own know no limit.
  local function add_large_entry(stream, words, left, ...)
    if left == 0 then
      return redis.pcall('XADD', stream, '*', ...)
    elseif left < 16 then
      return add_large_entry(stream, words, left - 1, words[left], ...)
    end
    local i = left - 16
    return add_large_entry(stream, words, i, words[i + 1], words[i + 2], words[i + 3], words[i + 4], words[i + 5], words[i + 6],
      words[i + 7], words[i + 8], words[i + 9], words[i + 10], words[i + 11], words[i + 12], words[i + 13], words[i + 14], words[i + 15],
      words[left], ...)
  end

  add_entry = function(stream, fields)
    local n, reply = #fields, nil
    if n > MAX_WORDS + MARKS then
      return nil, 'too many fields'
    elseif n > MAX_UNPACKED then
      reply = add_large_entry(stream, fields, n - MAX_UNPACKED, unpack(fields, n - MAX_UNPACKED + 1))
    else
      reply = redis.pcall('XADD', stream, '*', unpack(fields))
    end
    if type(reply) == 'table' and reply.err then
      return nil, reply.err
    end
    return reply
  end
end

-- The flat fields of a dead letter: the payload byte for byte, then what is known of the job's end.
local function dead_letter_fields(job, letter)
  local fields = identified_fields(job, letter.deliveries, letter.consumers)
  local n = #fields
  local extra = {
    'reaper.dead.stream', letter.stream,
    'reaper.dead.group', letter.group,
    'reaper.dead.entry', job.entry_id,
    'reaper.dead.reason', letter.reason,
    'reaper.dead.error', letter.error or '',
    'reaper.dead.last_ms', letter.last_ms,
    'reaper.dead.at_ms', letter.at_ms,
  }
  for i = 1, #extra do
    fields[n + i] = extra[i]
  end
  if letter.traceback and letter.traceback ~= '' then
    n = #fields
    fields[n + 1], fields[n + 2] = 'reaper.dead.traceback', letter.traceback
  end
  return fields
end

