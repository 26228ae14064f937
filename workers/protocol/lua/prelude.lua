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
local MAX_SAFE_COUNT = 9007199254740992 -- 2^53: a delivery count above it is a FATAL XNACK, not a number
local MAX_UNPACKED = 7000 -- unpack() fails a little below 8,000
local MAX_WORDS = 20000 -- of a copy: it takes the server 20 ms, and four times that for twice as many

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- `copies`: what follows a copy is asked for as well, by calls that change nothing. Where a right is missing in a script's midst, what
-- was written by then stays: a copy beside its original, and one more each time that it is tried again.
local function open_for_writing(stream, group, copies, notes)
  redis.call('XACK', stream, group, '0-0')
  if copies then
    redis.call('XDEL', stream, '0-0')
  end
  if notes then
    redis.call('HDEL', notes, '')
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

-- A worker's word in the agreement, field `member:<consumer>`: which version of the agreement it goes by, its visibility
-- timeout and max_deliveries, until when that counts (the server's ms), since when it stands, and, where its settings differ, in
-- what. One that was taken away, or from whose consumer a later process of the name has taken over, stands since after that.
local function read_word(value)
  local version, visibility, limit, until_ms, since, rest =
    string.match(value or '', '^(%d+),(%d+),(%d+),(%d+),?(%d*),?(.*)$')
  if version then
    return {
      version = tonumber(version), visibility = tonumber(visibility), max_deliveries = tonumber(limit),
      until_ms = tonumber(until_ms), since = tonumber(since) or 0, mismatch = rest,
    }
  end
end

local function written_word(word)
  return string.format('%.0f,%.0f,%.0f,%.0f,%.0f,', word.version, word.visibility, word.max_deliveries, word.until_ms, word.since)
    .. word.mismatch
end

-- A consumer of our workers: <name>.<12 hex digits>.
local OUR_CONSUMER = '%.' .. string.rep('%x', 12) .. '$'

-- Returns the visibility timeout in ms and the max_deliveries by which deliveries of the group are judged now, and the server time in ms
-- until when at least. Workers read the group settings every 30 s. So when a value was lowered, the higher one counts until each of them
-- has had the time to read the new one (take_over_group.lua; join_group.lua for workers that came before there were group settings).
local function group_terms(settings, visibility, max_deliveries, at)
  local former = redis.call('HMGET', settings, 'former_until', 'former_visibility_ms', 'former_max_deliveries')
  local until_ms = whole_number(former[1], 0)
  if until_ms <= at then
    return visibility, max_deliveries, math.huge
  end
  return math.max(visibility, whole_number(former[2], 0)), math.max(max_deliveries, whole_number(former[3], 0)), until_ms
end

-- Whoever makes the group says when, in `made`, and in `made_from` where it begins. A group that somebody destroyed has forgotten
-- what was pending, and a leader that watched it cannot see that in a group that is there again. Returns the moment, in ms.
local function made_anew(agreement, start)
  local made = math.max(now_ms(), whole_number(redis.call('HGET', agreement, 'made'), 0) + 1)
  redis.call('HSET', agreement, 'made', string.format('%.0f', made), 'made_from', start)
  redis.call('HDEL', agreement, 'marked') -- nobody has marked the new one yet (keep_house.lua)
  return made
end

local function each_word(agreement, visit)
  local fields = redis.call('HGETALL', agreement)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 7) == 'member:' then
      visit(fields[i], read_word(fields[i + 1]))
    end
  end
end

-- Tells whether some worker's word counts now: it lives, and may run what is put back.
local function some_word_counts(agreement, at)
  local counts = false
  each_word(agreement, function(_, word)
    counts = counts or (word ~= nil and word.until_ms > at)
  end)
  return counts
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

-- Reads rows that mostly lie together (a crashed worker's entries) a run at a time, for entry IDs that ascend. `fetch` gets an
-- entry ID and how many rows to read from there on; a row's first element is its ID. Runs grow while what was read ahead is
-- asked for (`at_once`: to `most` with the second one; for rows that are small), and start over where it was not. Returns a function from entry ID and the number of entries still to come to
-- the row, or nil; and where it stands: `rows` that were read, and in `at` which of them is next, for who looks by himself.
local function read_ahead(fetch, most, at_once)
  local ahead, look, growth = { rows = {}, at = 1 }, 1, at_once and most or 4
  return function(entry_id, left)
    local rows, at = ahead.rows, ahead.at
    local row = rows[at]
    if row and row[1] == entry_id then
      ahead.at = at + 1
      return row
    end
    if row then
      while rows[at] and rows[at][1] ~= entry_id do
        at = at + 1
      end
      if not rows[at] then
        look, growth = 1, 4
      end
    end
    if not rows[at] then
      rows, at = fetch(entry_id, math.min(look, left)), 1
      if not rows[1] or rows[1][1] ~= entry_id then
        ahead.rows, ahead.at, look, growth = {}, 1, 1, 4
        return nil
      end
      ahead.rows, look = rows, math.min(look * growth, most)
    end
    ahead.at = at + 1
    return rows[at]
  end, ahead
end

local REWRITTEN = {
  ['reaper.job'] = true,
  ['reaper.deliveries'] = true,
  ['reaper.generation'] = true,
  ['reaper.first_ms'] = true,
  ['reaper.consumers'] = true,
  ['reaper.copies'] = true,
  ['reaper.waits'] = true,
  ['reaper.hand_backs'] = true,
  ['reaper.previous'] = true,
  ['reaper.suspect'] = true,
}

-- A trace that the producer samples (W3C: the last bit of the flags): its deliveries are told of as spans, each of which
-- has a name that everybody can work out: generation.copies.times delivered. So whoever recovers a delivery can tell of
-- it in place of a worker that cannot any more. Fields of jobs that nobody traces are left as they are.
local MAX_PREVIOUS_BYTES = 64
local function is_sampled(traceparent)
  return #traceparent >= 55 and string.find(traceparent, '^%x%x%-%x+%-%x+%-%x[13579bdf]') ~= nil
end

local function with_trace(job, fields, traceparent, previous)
  if traceparent and is_sampled(traceparent) then
    job.traceparent, job.tracestate, job.previous = traceparent, '', previous and string.sub(previous, 1, MAX_PREVIOUS_BYTES)
    for i = 1, #fields, 2 do
      if fields[i] == 'tracestate' then
        job.tracestate = fields[i + 1]
      end
    end
  end
  return job
end

-- Names a delivery of a traced job, and what is known of the one before: what a recovery returns of it.
local function traced_delivery(job, times_delivered)
  return { job.traceparent, job.tracestate, job.generation .. string.format('.%.0f.%.0f', job.copies or 0, times_delivered),
    job.previous or '' }
end

-- The job's next entry says which delivery came before it, and how that ended: 'r'ecovered or 's'ettled.
local function leave_trace(job, times_delivered, how)
  if job.traceparent then
    job.previous = traced_delivery(job, times_delivered)[3] .. '.' .. how
  end
end

-- Splits an entry's flat fields into what is the user's (order and duplicates kept) and what is ours, sanitised.
-- The same rules stand in workers/protocol/messages.py.
local function open_entry(entry_id, fields)
  local found, bytes, traceparent = nil, 0, nil
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    bytes = bytes + #name + #value
    if REWRITTEN[name] or name == 'reaper.visibility_ms' then
      found = found or {}
      found[name] = value
    elseif name == 'traceparent' then
      traceparent = value
    end
  end
  if not found then -- all fields are the user's, and need no copying
    return with_trace({
      entry_id = entry_id, job_id = entry_id, deliveries = 0, generation = '0', first_ms = string.match(entry_id, '^%d+'),
      visibility_ms = 0, consumers = '', copies = 0, waits = 0, user = fields, bytes = bytes,
    }, fields, traceparent)
  end
  local user, n = {}, 0
  for i = 1, #fields, 2 do
    if not REWRITTEN[fields[i]] then
      user[n + 1], user[n + 2] = fields[i], fields[i + 1]
      n = n + 2
    end
  end
  local job_id = found['reaper.job']
  if not job_id or #job_id == 0 or #job_id > MAX_JOB_ID_BYTES then
    job_id = entry_id
  end
  return with_trace({
    entry_id = entry_id,
    job_id = job_id,
    deliveries = whole_number(found['reaper.deliveries'], 0),
    generation = whole_digits(found['reaper.generation'], '0'), -- digits, as `first_ms`
    first_ms = whole_digits(found['reaper.first_ms'], string.match(entry_id, '^%d+')),
    visibility_ms = whole_number(found['reaper.visibility_ms'], 0),
    consumers = string.sub(found['reaper.consumers'] or '', -MAX_CONSUMERS_BYTES),
    copies = whole_number(found['reaper.copies'], 0),
    waits = whole_number(found['reaper.waits'], 0),
    hand_backs = whole_number(found['reaper.hand_backs'], 0),
    suspect = found['reaper.suspect'] and 0 or nil, -- on probation; how it crashed is no producer's to say
    user = user,
    bytes = bytes,
  }, fields, traceparent, found['reaper.previous'])
end

-- Counted deliveries of a job, the one under way included. A base from outside is cut to `max - 1`: whatever a
-- producer wrote there, every entry is executed at least once.
local function delivery_count(job, times_delivered, max_deliveries)
  if times_delivered >= MAX_SAFE_COUNT then
    return MAX_SAFE_COUNT
  end
  return math.min(job.deliveries, max_deliveries - 1) + times_delivered
end

local printable = {}
local function with_consumer(job, consumer)
  if consumer == '' then -- given back by somebody who is not named
    return job.consumers
  end
  local name = printable[consumer]
  if not name then
    name = string.gsub(consumer, '[,%c]', '_')
    printable[consumer] = name
  end
  if job.consumers == '' then
    return string.sub(name, -MAX_CONSUMERS_BYTES)
  end
  return string.sub(job.consumers .. ',' .. name, -MAX_CONSUMERS_BYTES)
end

-- What is given back where it is (policy `in-place`) stays pending under a consumer of ours. `READY_CONSUMER` holds what is ready:
-- idle for so long that every reader with CLAIM takes it. `WAITING_CONSUMER` holds what stands in the schedule, by a member that
-- names the entry alone; the leader's looks keep it young (recovery.lua), so that it is claimable by itself where none lives.
-- `RETURNED_CONSUMER` holds what a reader has taken by mistake, until whoever had it shows that (return_taken.lua). What of it stands
-- in the schedule waits there: readers that are not ours do not know whose it was.
local READY_CONSUMER, WAITING_CONSUMER, RETURNED_CONSUMER = 'ready-by-reaper', 'waiting-by-reaper', 'returned-by-reaper'
local CLAIMABLE_MS = 4000000000 -- 46 days. Were it beyond the server's own time, Redis would make it 0

-- Where the server has XNACK (Redis 8.8), nobody holds what is ready: XPENDING has no name for it, and idle -1. Foreign workers give
-- back so, too. No consumer of that name may be made: nothing is XCLAIMed for the owner of a row that has none.
local NOBODY = ''
local function laid_aside_as(consumer)
  return (consumer == READY_CONSUMER or consumer == NOBODY) and 'ready' or consumer == WAITING_CONSUMER and 'waiting' or nil
end

-- The entry stays as its producer wrote it, so what a copy says of its job in reserved fields is noted in a hash, by entry ID:
-- what is to be added to the times delivered (below 0: some did not count), uncounted retries in a row ('/' and hand-backs in a row), how often a suspect
-- crashed in company ('' = on no probation), the delivery before (of a traced job), and consumers. It has the word from the fields.
local function with_note(job, note)
  local deliveries, waits, hand_backs, suspect, previous, consumers =
    string.match(note or '', '^(%-?%d+),(%d+)/?(%d*),(%d*),([^,]*),(.*)$')
  if deliveries then
    job.deliveries, job.waits, job.suspect = tonumber(deliveries), tonumber(waits), tonumber(suspect)
    job.hand_backs = tonumber(hand_backs) or 0
    job.previous, job.consumers = previous ~= '' and previous or job.previous, consumers
  end
  return job
end

local function written_note(job, deliveries, times, consumers, waits)
  local hand_backs = (job.hand_backs or 0) > 0 and '/' .. small_digits(job.hand_backs) or ''
  return string.format('%.0f,%.0f%s,%s,%s,', deliveries - times, waits or 0, hand_backs,
    job.suspect and string.format('%.0f', job.suspect) or '', job.previous or '') .. consumers
end

-- Lays an entry aside under a consumer of ours, or as nobody's; `times` is its delivery count from now on.
-- Redis 8.6 has all that is pending in a list by its idle time, and looks for an entry's place there from the youngest end on: a step
-- for each that is younger, unless it is to be older than all. By such steps a mass costs the square of its size. So where more than
-- a few are not ready, what becomes ready is older than whatever did before, and read before that; else it is read in its turn.
-- Older by a millisecond for each microsecond of the clock: so it is in the calls that follow, too. (It begins anew every 12 days.)
-- Equal is not older: each needs an XCLAIM of its own. `lay_ready` takes many, from the last to the first, which are read in their order.
local lay_aside, lay_ready
do
  -- Gives entries back by XNACK, where the server has it: always by FAIL, with their delivery count from now on, since SILENT would lower
  -- it, and a late verdict of the delivery before would fit the next one. What did not count stands in the note. Whether we may is asked of
  -- the server that runs this call, so that no failover, upgrade or changed right makes the answer stale: by what refuses and logs nothing
  -- (Redis 7), else by a call that does nothing.
  local may_nack
  local function nacked(source, group, entry_id, count)
    if may_nack == nil then
      if redis.acl_check_cmd then
        local is_known, may = pcall(redis.acl_check_cmd, 'XNACK', source, group, 'FAIL', 'IDS', '1', entry_id)
        may_nack = is_known and may
      else
        may_nack = type(redis.pcall('XNACK', source, group, 'FAIL', 'IDS', '1', '0-0')) == 'number'
      end
    end
    if may_nack then
      local reply = redis.pcall('XNACK', source, group, 'FAIL', 'IDS', '1', entry_id, 'RETRYCOUNT', count)
      if type(reply) == 'number' then
        return true
      end
      may_nack = false
    end
    return false
  end

  local FEW, CYCLE_US = 1000, 1000000000000
  local since_ms = {} -- by source: when the latest of this call became idle; false where only a few are not ready
  local function latest_ms(source, group)
    local summary, time, others = redis.call('XPENDING', source, group), redis.call('TIME'), 0
    for _, held in ipairs(summary[4] or {}) do -- by consumer: what nobody holds is in the total alone
      others = others + (held[1] == READY_CONSUMER and 0 or tonumber(held[2]))
    end
    return others > FEW and now_ms() - CLAIMABLE_MS - (time[1] * 1000000 + time[2]) % CYCLE_US
  end

  local CLAIMABLE = string.format('%.0f', CLAIMABLE_MS)
  local function age(source, group)
    if since_ms[source] == nil then
      since_ms[source] = latest_ms(source, group)
    end
    if not since_ms[source] then
      return 'IDLE', CLAIMABLE
    end
    since_ms[source] = math.max(since_ms[source] - 1, 0)
    return 'TIME', string.format('%.0f', since_ms[source])
  end

  local function lay_one_ready(source, group, entry_id, count)
    if not nacked(source, group, entry_id, count) then
      local option, ms = age(source, group)
      redis.call('XCLAIM', source, group, READY_CONSUMER, '0', entry_id, option, ms, 'RETRYCOUNT', count, 'JUSTID')
    end
  end

  lay_aside = function(source, group, consumer, entry_id, times)
    local count = small_digits(times)
    if consumer == READY_CONSUMER then
      return lay_one_ready(source, group, entry_id, count)
    end
    redis.call('XCLAIM', source, group, consumer, '0', entry_id, 'IDLE', '0', 'RETRYCOUNT', count, 'JUSTID')
  end

  lay_ready = function(source, group, entry_ids, counts)
    for i = #entry_ids, 1, -1 do
      lay_one_ready(source, group, entry_ids[i], counts[i])
    end
  end
end

-- Such an entry's member of the schedule; which entry, of what (`stream` | `retry`), a member names, if it does.
local function member_of(source, stream, entry_id)
  return (source == stream and 'stream ' or 'retry ') .. entry_id
end

local function entry_named(member)
  local kind, entry_id = string.match(member, '^(%a+) (%d+%-%d+)$')
  if kind == 'stream' or kind == 'retry' then
    return kind, entry_id
  end
end

-- Gives back what a read with CLAIM has taken from somebody, who had it as its delivery `times` (return_taken.lua).
local function give_back_taken(source, stream, group, schedule, entry_id, times)
  local waits = type(redis.pcall('ZSCORE', schedule, member_of(source, stream, entry_id))) == 'string'
  lay_aside(source, group, waits and WAITING_CONSUMER or RETURNED_CONSUMER, entry_id, times)
end

-- The user's fields, byte for byte, then what says which job it is. Hot: it extends `job.user` in place, so a job is made
-- ready, parked or dead-lettered once.
local function identified_fields(job, deliveries, consumers)
  local fields, n = job.user, #job.user
  fields[n + 1], fields[n + 2] = 'reaper.job', job.job_id
  fields[n + 3], fields[n + 4] = 'reaper.deliveries', small_digits(deliveries)
  fields[n + 5], fields[n + 6] = 'reaper.generation', job.generation
  fields[n + 7], fields[n + 8] = 'reaper.first_ms', job.first_ms
  fields[n + 9], fields[n + 10] = 'reaper.consumers', consumers
  if job.previous then
    fields[n + 11], fields[n + 12] = 'reaper.previous', job.previous
  end
  return fields
end

-- The flat fields of the job's next entry. `waits`: uncounted retries in a row, this one included; none by default.
local READY_FIELDS = 12 -- two more where it waits
local function may_be_ready(job, more)
  return #job.user + READY_FIELDS + more + (job.previous and 2 or 0) <= MAX_WORDS
end

local function ready_fields(job, deliveries, consumers, waits)
  local fields = identified_fields(job, deliveries, consumers)
  local n = #fields
  fields[n + 1], fields[n + 2] = 'reaper.copies', (job.copies or 0) + 1
  if waits and waits > 0 then
    fields[n + 3], fields[n + 4] = 'reaper.waits', waits
    n = n + 2
  end
  if (job.hand_backs or 0) > 0 then
    fields[n + 3], fields[n + 4] = 'reaper.hand_backs', job.hand_backs
    n = n + 2
  end
  if job.suspect then
    fields[n + 3], fields[n + 4] = 'reaper.suspect', '1'
  end
  return fields
end

-- A schedule's member: the whole job, packed. Its entry ID (or, before its first entry, its job ID) makes it unique: two
-- equal members would be one. `kind` says what becomes of it: suspect, retry or enqueue. `suspect` is there where the job is
-- on probation: how often it crashed in company.
local function pack_job(kind, job, deliveries, consumers, waits)
  return cmsgpack.pack({
    v = 1, kind = kind, job_id = job.job_id, deliveries = deliveries, generation = job.generation,
    first_ms = job.first_ms, consumers = consumers, copies = job.copies, waits = waits or 0, hand_backs = job.hand_backs, user = job.user,
    entry_id = job.entry_id, previous = job.previous, suspect = job.suspect,
  })
end

-- Numbers of a packed job: whole, not negative, and exact in Lua; or nothing.
local function packed_number(value)
  if type(value) == 'string' then
    return whole_number(value, nil)
  end
  return type(value) == 'number' and value >= 0 and value < 1e15 and value % 1 == 0 and value or nil
end

local function packed_digits(value) -- of an entry ID they may be more than 15
  if type(value) == 'string' then
    return string.match(value, '^%d+$')
  end
  local number = packed_number(value)
  return number and string.format('%.0f', number)
end

local function is_flat(fields)
  local n = 0
  for _ in pairs(fields) do
    n = n + 1
  end
  for i = 1, n do
    if type(fields[i]) ~= 'string' then
      return false
    end
  end
  return n % 2 == 0
end

-- Returns the job that a member of a schedule holds, or nil where it is none: anybody may write there. What is returned has
-- every part that a job of its kind needs, of the type that it must have, so whoever reads it trips over nothing.
local function unpack_job(member)
  local ok, job = pcall(cmsgpack.unpack, member)
  if not ok or type(job) ~= 'table' or type(job.user) ~= 'table' or not is_flat(job.user) then
    return nil
  end
  if type(job.job_id) ~= 'string' or #job.job_id == 0 or type(job.entry_id) ~= 'string' then
    return nil
  end
  local had_entry = job.kind == 'suspect' or job.kind == 'retry'
  if job.kind ~= 'enqueue' and not (had_entry and string.find(job.entry_id, '^%d+%-%d+$')) then
    return nil
  end
  job.deliveries, job.generation = packed_number(job.deliveries), packed_digits(job.generation)
  job.first_ms = packed_digits(job.first_ms)
  if not (job.deliveries and job.generation and job.first_ms and type(job.consumers) == 'string') then
    return nil
  end
  -- Older versions wrote none of these.
  job.copies, job.waits, job.suspect = packed_number(job.copies), packed_number(job.waits), packed_number(job.suspect)
  job.hand_backs = packed_number(job.hand_backs)
  job.previous = type(job.previous) == 'string' and job.previous or nil
  return job
end

local function wake(schedule, due_ms)
  redis.pcall('PUBLISH', schedule, string.format('%.0f', due_ms))
end

-- Parks a packed job until `due_ms`, and wakes who moves the schedule where it would sleep for longer.
local function park_until(schedule, due_ms, packed)
  local head = redis.pcall('ZRANGE', schedule, 0, 0, 'WITHSCORES')
  local reply = head.err and head or redis.pcall('ZADD', schedule, string.format('%.0f', due_ms), packed)
  if type(reply) == 'table' then
    return false, reply.err
  end
  if not head[2] or tonumber(head[2]) > due_ms then
    wake(schedule, due_ms)
  end
  return true
end

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

-- Tells whether a delivery that is not pending for its consumer any more was taken by mistake, and given back under its count; or
-- dropped by somebody's XGROUP DELCONSUMER or DESTROY:
-- nobody holds it (or the leader that has put it back), and its payload is there. From a retry stream nobody of ours takes a
-- delivery without deleting the entry, but for a dead letter: it has had all its deliveries. Elsewhere an entry that another one
-- took over where it is (embedded, or a later process of the same name) and settled lies there as if it had vanished, and only time
-- tells: nobody of ours takes a delivery that was proven alive (`proven`, the server's ms) less than a visibility timeout ago: the one
-- that deliveries are judged by (group_terms), for its worker may not have heard of a shorter one. Two thirds of it, since
-- clocks differ; and not in the future, for they are set, too. A later process of the same name does not wait for that; so
-- it must have been proven alive since the word stands (read_word).
-- What embedded workers have not set stands in the word.
local RESTORED_CONSUMER = 'restored-by-reaper'
local function was_returned(row, times)
  return row and row[2] == RETURNED_CONSUMER and row[4] == times
end

-- What the journal tells of how a delivery ended since a moment: 'over' where the group has settled the job for good, 'ended' where it was
-- given back or the like, or is over in some group, 'open' where it tells of no end, nothing where it does not reach so far, or has too much
-- to tell. (A group's name that JSON writes otherwise is not known again.)
local told_end
do
  local MOST_TOLD, MOST_LOOKS = 200, 8
  local GOES_ON = { delivered = true, started = true, extended = true, refused = true, scanned = true }
  local looks = {} -- each: since when, whether it tells of all, and by entry or job ID when one ended last, and was over

  local function note_end(known, group, event, ms)
    local data = event.data or ''
    local is_ours = string.match(data, '"group":"([^"]*)"') == group
    for entry_id in string.gmatch(data, '"(%d+%-%d+)"') do
      known.ended[entry_id] = ms
      known.over[entry_id] = is_ours and event.event == 'acked' and ms or known.over[entry_id]
    end
    local given_up = is_ours and event.event == 'dead_lettered' and string.match(data, '"entry":"(%d+%-%d+)"')
    if given_up then
      known.over[given_up] = ms
    end
  end

  local function look(journal, group, since)
    local known = { since = since, is_all = false, ended = {}, over = {} }
    local oldest = redis.pcall('XRANGE', journal, '-', '+', 'COUNT', 1)
    local rows = oldest[1] and redis.pcall('XRANGE', journal, string.format('%.0f', since), '+', 'COUNT', MOST_TOLD) or {}
    for _, row in ipairs(rows) do
      local event = {}
      for i = 1, #row[2], 2 do
        event[row[2][i]] = row[2][i + 1]
      end
      if not GOES_ON[event.event] then
        note_end(known, group, event, entry_ms(row[1]))
      end
    end
    known.is_all = oldest[1] and entry_ms(oldest[1][1]) < since and not rows.err and #rows < MOST_TOLD
    return known
  end

  told_end = function(journal, group, entry_id, since)
    local found
    for _, known in ipairs(looks) do
      found = found or (known.since == since or (known.is_all and known.since < since)) and known
    end
    if not found and #looks < MOST_LOOKS then
      found = look(journal, group, since)
      looks[#looks + 1] = found
    end
    if not found then
      return nil
    elseif (found.over[entry_id] or 0) >= since then
      return 'over'
    end
    return (found.ended[entry_id] or 0) >= since and 'ended' or found.is_all and 'open' or nil
  end
end

-- Counts an entry that somebody deleted although it was pending, for `reaper status`.
local function count_lost_payload(agreement)
  redis.pcall('HINCRBY', agreement, 'lost_payload', 1)
  redis.pcall('HSET', agreement, 'lost_payload_ms', string.format('%.0f', now_ms()))
end

local has_vanished, is_taken, is_deleted
do
  -- What a consumer's worker has joined with, or nothing where it gives no word. It may be silent for the shorter of what others judge
  -- it by, and what it has gone by itself: a longer timeout that was agreed on while it was silent says nothing of who took its
  -- deliveries before.
  local function terms_of_word(agreement, consumer)
    local agreed = redis.call('HMGET', agreement, 'policy', 'max_deliveries', 'visibility_ms', 'recovery', 'member:' .. consumer)
    local word = read_word(agreed[5])
    if not word then
      return nil
    end
    local visibility, limit = whole_number(agreed[3], word.visibility), whole_number(agreed[2], word.max_deliveries)
    visibility, limit = group_terms(agreement, visibility, limit, now_ms())
    return {
      silence = math.min(visibility, word.visibility), max_deliveries = limit, since = word.since,
      policy = agreed[1], has_rules = agreed[1] or agreed[4] == 'embedded',
    }
  end

  local function was_proven_lately(proven, terms)
    local ago = proven and now_ms() - proven
    return ago and ago >= 0 and ago * 3 <= terms.silence * 2 and proven >= terms.since
  end

  has_vanished = function(source, stream, group, agreement, consumer, entry_id, times, proven, journal)
    local row = redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1]
    if was_returned(row, times) then
      return true
    end
    local terms = terms_of_word(agreement, consumer)
    if not terms then
      return false
    end
    local is_safe = terms.has_rules and was_proven_lately(proven, terms)
    if source == stream and not is_safe then
      return false
    end
    local entry = redis.call('XRANGE', source, entry_id, entry_id)[1]
    if not entry or (row and row[2] ~= RESTORED_CONSUMER) then
      return false
    end
    for _, info in ipairs(redis.call('XINFO', 'GROUPS', source)) do
      if info_field(info, 'name') == group and is_after(entry_id, info_field(info, 'last-delivered-id')) then
        return false -- the server has lost that it was ever delivered: it is ready, and will be delivered anew
      end
    end
    if journal and proven and told_end(journal, group, entry_id, proven) == 'over' then
      return false -- the server has lost this delivery, and another one was settled
    end
    return is_safe or delivery_count(open_entry(entry_id, entry[2]), times, terms.max_deliveries) < terms.max_deliveries
  end

  -- Tells whether somebody has deleted an entry together with its pending references: XDELEX, XACKDEL, trimming with DELREF, XACK and
  -- XDEL. A recovery that copies the job leaves the same behind, so the delivery must have been proven lately: nobody recovers that.
  is_deleted = function(source, group, agreement, consumer, entry_id, proven)
    if redis.call('XRANGE', source, entry_id, entry_id)[1] or redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1] then
      return false
    end
    local terms = terms_of_word(agreement, consumer)
    return terms and was_proven_lately(proven, terms)
  end

  -- Tells whether a read with CLAIM has just taken a delivery from whoever lives and says that it is his, its own reads included: to the
  -- server what was handed out in the future is idle for longer than anything. It will be given back (return_taken.lua), so nothing is
  -- told of it until then. One that was taken by right was given no proof of for longer than this.
  is_taken = function(source, group, agreement, consumer, entry_id, times, proven)
    local row = proven and redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1]
    if not row or row[4] ~= times + 1 or laid_aside_as(row[2]) then
      return false
    end
    local terms = terms_of_word(agreement, consumer)
    return terms and terms.policy == 'in-place' and (proven > now_ms() or was_proven_lately(proven, terms))
  end
end

-- Reads what a worker says of a delivery that it holds: its delivery count and, where it says so, behind commas, when it was
-- proven alive last and until when that counts, by the server's clock in ms. For a call may arrive when whoever sent it has given it
-- up and settled by another one: what is done would look as if it had vanished, and be done once more. Third, whether it came too
-- late for that: then what is not pending is neither taken back nor refused, but to be asked for again, by whoever still waits. Fourth,
-- whether the worker knows already that the payload is gone: the word ends with `,lost`.
local read_count
do
  local asked, is_late -- all that a call says counts until the same moment
  read_count = function(word)
    local times, proven, until_ms, lost = string.match(word, '^(%d+),(%d+),?(%d*)(,?l?o?s?t?)$')
    if until_ms ~= asked then
      asked, is_late = until_ms, until_ms and until_ms ~= '' and now_ms() > tonumber(until_ms)
    end
    return tonumber(times or word), not is_late and tonumber(proven or '') or nil, times and is_late, lost == ',lost'
  end
end

-- Makes such a delivery its consumer's again.
local function hold_again(source, group, consumer, entry_id, times)
  redis.call('XCLAIM', source, group, consumer, 0, entry_id, 'RETRYCOUNT', times, 'FORCE', 'JUSTID')
end

-- What of a string is UTF-8 as it is, bytes that are not as `\xNN`: cjson passes on whatever it gets, and names may be any
-- bytes. The same as `text` in workers/protocol/messages.py.
local BEYOND_ASCII = '[\128-\255]'
local REST = '[\128-\191]'
local CHARACTERS = { -- no surrogates, nothing longer than it need be, nothing behind U+10FFFF
  '^[\194-\223]' .. REST, '^\224[\160-\191]' .. REST, '^[\225-\236\238\239]' .. REST .. REST, '^\237[\128-\159]' .. REST,
  '^\240[\144-\191]' .. REST .. REST, '^[\241-\243]' .. REST .. REST .. REST, '^\244[\128-\143]' .. REST .. REST,
}
local function character_end(value, at)
  for _, character in ipairs(CHARACTERS) do
    local _, last = string.find(value, character, at)
    if last then
      return last
    end
  end
end

local function utf8_of(value)
  local at = string.find(value, BEYOND_ASCII)
  if not at then
    return value
  end
  local parts, from = {}, 1
  while at do
    local last = character_end(value, at)
    parts[#parts + 1] = string.sub(value, from, last or at - 1)
    if not last then
      parts[#parts + 1] = string.format('\\x%02x', string.byte(value, at))
    end
    from = (last or at) + 1
    at = string.find(value, BEYOND_ASCII, from)
  end
  return table.concat(parts) .. string.sub(value, from)
end

-- JSON strings, encoded once per call: consumer names repeat.
local encoded = {}
local function json_string(value)
  local text = encoded[value]
  if not text then
    local ok, result = pcall(function()
      return cjson.encode(utf8_of(value))
    end)
    text = ok and result or '"?"'
    encoded[value] = text
  end
  return text
end

-- Writes one entry of the journal: a lifecycle event, whose `data` is JSON text. A journal that is broken or full never stops an effect. It is trimmed
-- by the first event of a call and by every hundredth after it: a stream gives up its entries by the hundred anyway.
local try = redis.pcall -- a local name is reached faster
local add_to_journal
do
  local TRIM_EVERY, until_trim = 100, 0
  add_to_journal = function(journal, maxlen, ...)
    if until_trim == 0 then
      until_trim = TRIM_EVERY
      try('XADD', journal, 'MAXLEN', '~', maxlen, '*', ...)
    else
      try('XADD', journal, '*', ...)
    end
    until_trim = until_trim - 1
  end
end
local function journal_event(journal, maxlen, event, job_id, data)
  add_to_journal(journal, maxlen, 'event', event, 'job', job_id, 'data', data)
end

-- The agreement says how jobs become ready again. Policy `stream` copies within the stream itself, which is only right
-- where this group is its only one (others would see the copy) and entry IDs are automatic (an explicit ID below the
-- copy's would be refused from then on). Returns why not, or nil.
local FIRST_AUTOMATIC_MS = 1483228800000 -- 2017-01-01: streams are younger, so an ID below it was made by somebody
local CLOCK_TOLERANCE_MS = 31622400000 -- a year: of a clock that was set back the IDs still are; other units are farther off
local function layout_refusal(policy, stream, at_ms)
  if policy ~= 'stream' or redis.call('EXISTS', stream) == 0 then
    return nil
  end
  if #redis.call('XINFO', 'GROUPS', stream) > 1 then
    return 'several_groups'
  end
  local info = redis.call('XINFO', 'STREAM', stream)
  local last_id = info_field(info, 'last-generated-id')
  -- Libraries make a stream for a group by adding one entry, whose ID they choose, and deleting it.
  if info_field(info, 'length') == 0 and (last_id == '0-1' or info_field(info, 'entries-added') == 1) then
    return nil
  end
  local last_ms = entry_ms(last_id)
  if last_id ~= '0-0' and (last_ms < FIRST_AUTOMATIC_MS or last_ms > at_ms + CLOCK_TOLERANCE_MS) then
    return 'explicit_ids'
  end
  return nil
end

-- Where copies go, or nil and why they can go nowhere. What becomes ready where it is is copied only where there is no entry any more,
-- or not yet: by policy `in-place` a copy goes to the stream where it does no harm, else to the group's own.
local function copy_target(policy, stream, retry, at)
  if policy == 'retry-stream' then
    return retry
  end
  local refusal = layout_refusal('stream', stream, at)
  if policy == 'in-place' then
    return refusal and retry or stream
  end
  return not refusal and stream or nil, refusal
end

-- How a delivery that is over becomes ready, waits for its time, or is parked as a suspect. Each returns what stands for the
-- job's next entry (or true), or nil and why not. By a copy, after which its entry is to be left:
local function by_copy(target, schedule)
  return {
    is_copied = true,
    ready = function(job, _, deliveries, consumers, waits)
      return add_entry(target, ready_fields(job, deliveries, consumers, waits))
    end,
    wait = function(job, _, deliveries, consumers, waits, due_ms)
      if not may_be_ready(job, 2) then -- scheduled, it could never be made ready
        return nil, 'too many fields'
      end
      return park_until(schedule, due_ms, pack_job('retry', job, deliveries, consumers, waits))
    end,
    park = function(job, _, deliveries, consumers, waits, score)
      if not may_be_ready(job, waits and 2 or 0) then
        return nil, 'too many fields'
      end
      return park_suspect(schedule, job, score, deliveries, consumers, waits)
    end,
  }
end

-- Or where it is. `times`: how often it was delivered, which stays its delivery count.
local function where_it_is(source, stream, group, schedule, notes)
  local function note(job, times, deliveries, consumers, waits)
    redis.call('HSET', notes, job.entry_id, written_note(job, deliveries, times, consumers, waits))
  end
  local function lay_in_wait(job, times, add)
    local ok, why = add(member_of(source, stream, job.entry_id))
    if ok then
      lay_aside(source, group, WAITING_CONSUMER, job.entry_id, times)
    end
    return ok, why
  end
  return {
    ready = function(job, times, deliveries, consumers, waits)
      note(job, times, deliveries, consumers, waits)
      lay_aside(source, group, READY_CONSUMER, job.entry_id, times)
      return job.entry_id
    end,
    wait = function(job, times, deliveries, consumers, waits, due_ms)
      note(job, times, deliveries, consumers, waits)
      return lay_in_wait(job, times, function(member) return park_until(schedule, due_ms, member) end)
    end,
    park = function(job, times, deliveries, consumers, waits, score)
      job.suspect = job.suspect or 0
      note(job, times, deliveries, consumers, waits)
      return lay_in_wait(job, times, function(member)
        local reply = redis.pcall('ZADD', schedule, string.format('%.0f', score), member)
        return type(reply) ~= 'table', type(reply) == 'table' and reply.err or nil
      end)
    end,
  }
end

-- What a member of the schedule stands for that waits where it is: the job, with its `source`, its `row` in the pending entries list
-- and its counted deliveries; or nil where it waits no more (acknowledged, deleted, or claimed by a reader, as nobody kept it young).
-- Somebody may have deleted `WAITING_CONSUMER`, which is idle for long, and all that it held with it. Then the schedule alone knows
-- of it. What waits next makes that consumer anew, so its absence is no more than one sign. The other is a note: whoever of ours ends a job
-- takes it away, so where it names none but workers of ours, nobody has ended the job, and it waits as before. What others have held is
-- pending again where that consumer is missing: of `RESTORED_CONSUMER` and overdue, to be recovered as any.
local waiting_there
do
  local function has_waiting_consumer(source, group)
    for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', source, group)) do
      if info_field(info, 'name') == WAITING_CONSUMER then
        return true
      end
    end
    return false
  end

  local function is_delivered(source, group, entry_id)
    for _, info in ipairs(redis.call('XINFO', 'GROUPS', source)) do
      if info_field(info, 'name') == group then
        return not is_after(entry_id, info_field(info, 'last-delivered-id'))
      end
    end
    return false
  end

  -- Returns how many are named there, or nothing where one is not a worker of ours, or may have been cut off.
  local function count_ours(consumers)
    local count = 0
    for name in string.gmatch(consumers, '[^,]+') do
      if string.find(name, OUR_CONSUMER) then
        count = count + 1
      elseif name ~= RESTORED_CONSUMER then
        return nil
      end
    end
    return #consumers < MAX_CONSUMERS_BYTES and count or nil
  end

  -- Returns how often an entry was delivered of which there is no row any more, as far as its note says so: who had it is named there, but
  -- for who claimed it from one of these. At most as often as it may have been, else it would not wait. `before`: who is named in the entry.
  local function times_by_note(job, before, agreement)
    local named = count_ours(job.consumers)
    if not named or named == 0 then
      return nil
    end
    local most = whole_number(redis.call('HGET', agreement, 'max_deliveries'), 3) - 1 - job.deliveries
    return math.max(1, -job.deliveries, math.min(named - (count_ours(before) or 0), most))
  end

  waiting_there = function(member, stream, retry, group, notes, agreement)
    local kind, entry_id = entry_named(member)
    local source = kind == 'retry' and retry or stream
    local row = redis.pcall('XPENDING', source, group, entry_id, entry_id, 1)[1]
    local waits = not row or row[2] == WAITING_CONSUMER or row[2] == RETURNED_CONSUMER
    local entry = waits and redis.call('XRANGE', source, entry_id, entry_id)[1]
    if not entry then
      return nil
    end
    local job, note = open_entry(entry_id, entry[2]), redis.call('HGET', notes, entry_id)
    local before = job.consumers
    job = with_note(job, note)
    if not row and is_delivered(source, group, entry_id) then
      local times = note and times_by_note(job, before, agreement)
      if times then
        hold_again(source, group, WAITING_CONSUMER, entry_id, times)
        row = { entry_id, WAITING_CONSUMER, 0, times }
      elseif not has_waiting_consumer(source, group) then
        redis.call('XCLAIM', source, group, RESTORED_CONSUMER, 0, entry_id, 'IDLE',
          whole_number(redis.call('HGET', agreement, 'visibility_ms'), 30000), 'RETRYCOUNT', 1, 'FORCE', 'JUSTID')
      end
    end
    if not row then
      return nil
    end
    job.kind, job.source, job.row = kind, source, row
    job.counted = job.deliveries + row[4]
    return job
  end
end

-- Makes it ready: there, or, where the policy is another one by now, by a copy to `target`. Returns the ID of its entry, or nil and why.
local function end_wait(job, group, notes, policy, target)
  if policy == 'in-place' then
    lay_aside(job.source, group, READY_CONSUMER, job.entry_id, job.row[4])
    return job.entry_id
  end
  open_for_writing(job.source, group, true, notes)
  local id, why = add_entry(target, ready_fields(job, job.counted, job.consumers, job.waits))
  if id then
    redis.call('XACK', job.source, group, job.entry_id)
    if policy == 'stream' or job.kind == 'retry' then
      redis.call('XDEL', job.source, job.entry_id)
    end
    redis.call('HDEL', notes, job.entry_id)
  end
  return id, why
end
