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
