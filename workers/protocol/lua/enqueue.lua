-- (new) -> ready | scheduled: a producer enqueues jobs, each once, also if it has to repeat the call.
--
-- KEYS[1] stream    orders                  stream
-- KEYS[2] schedule  {orders}:scheduled      sorted set: delayed enqueues, seen by every group when due
-- KEYS[3] enqueued  {orders}:enqueued       sorted set: `j:<job ID>`, `c:<call>`, and `d:<call>:<n>` where the n-th job of a call
--                                          was there already; scored by when they are forgotten (ms)
-- ARGV[1] the call's own ID ('' = it is not remembered, because every job has an ID that its producer chose)
-- ARGV[2] how long the call is remembered, in ms  ARGV[3] how long a job ID is, from when the job becomes ready
-- ARGV[4…] per job: job ID, '1' = the producer chose it, delay in ms (0 = ready now), number of words that follow, and
--          the words: field, value …
--
-- Returns one number a job: 1 enqueued, 0 there already. A call that is sent again after a lost reply answers as it did before.
-- All or nothing: an error (OOM, for one) means that no job was enqueued. So the first job is the first write.
-- Fence: none; any producer may enqueue, and a repeated job is not enqueued again.

local stream, schedule, enqueued = KEYS[1], KEYS[2], KEYS[3]

--- @prelude

local call, call_ms, job_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local FORGOTTEN_PER_JOB, FORGOTTEN_AT_LEAST = 2, 8

-- Without effect. A call that may not remember a job must not add it either, because after an error the producer enqueues it again. All three
-- raise WRONGTYPE.
redis.call('ZADD', enqueued, 'XX', 0, '')
redis.call('XLEN', stream)
redis.call('ZCARD', schedule)
local function is_remembered(member)
  local until_ms = redis.call('ZSCORE', enqueued, member)
  return until_ms and tonumber(until_ms) > at
end

local latest = 0
local function remember(member, until_ms)
  redis.call('ZADD', enqueued, digits(until_ms), member)
  latest = math.max(latest, until_ms)
end

local function enqueue(job_id, delay, from, to)
  if delay > 0 then
    local job = { id = job_id, entry = '', user = { unpack(ARGV, from, to) }, generation = '0', first_ms = digits(at), consumers = '',
      copies = 0, waits = 0, hand_backs = 0 }
    return put_in_schedule(at + delay, packed(job, 0, 'enqueue'))
  end
  return add_first({ unpack(ARGV, from, to) }, job_id)
end

local repeated = call ~= '' and is_remembered('c:' .. call)
local results, duplicates, n, i = {}, {}, 0, 4
while i <= #ARGV do
  local job_id, chosen, delay, words = ARGV[i], ARGV[i + 1] == '1', tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  n = n + 1
  if repeated then
    results[n] = is_remembered('d:' .. call .. ':' .. n) and 0 or 1
  elseif chosen and is_remembered('j:' .. job_id) then
    results[n] = 0
    duplicates[#duplicates + 1] = 'd:' .. call .. ':' .. n
  else
    local ok, why = enqueue(job_id, delay, i + 4, i + 3 + words)
    if not ok then
      return redis.error_reply(why)
    end
    if chosen then
      remember('j:' .. job_id, at + delay + job_ms)
    end
    results[n] = 1
  end
  i = i + 4 + words
end
if call ~= '' and not repeated then
  remember('c:' .. call, at + call_ms)
  for _, duplicate in ipairs(duplicates) do
    remember(duplicate, at + call_ms)
  end
end

-- Expired members are removed a few at a time, faster than new ones come; the last one removes the key. By pcall: the jobs are enqueued.
local past = redis.pcall('ZRANGEBYSCORE', enqueued, '-inf', digits(at), 'LIMIT', 0,
  math.min(FORGOTTEN_PER_JOB * n + FORGOTTEN_AT_LEAST, MAX_WORDS))
if #past > 0 then
  redis.pcall('ZREM', enqueued, unpack(past))
end
if latest > at then
  local left = redis.pcall('PTTL', enqueued)
  if type(left) ~= 'number' or left < latest - at then
    redis.pcall('PEXPIRE', enqueued, digits(latest - at))
  end
end
return results
