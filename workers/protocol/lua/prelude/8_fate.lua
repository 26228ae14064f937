-- The fate of an overdue delivery. Only `fate_of` decides it.

-- Reads the record of a released job: the stream of its entry; the delivery that its worker reported when it began the job alone; and
-- whether the worker reported later that the job runs.
local function read_released(value)
  local kind, arrived, lives = string.match(value or '', '^(%a+),(%d*),(%d)$')
  return kind and { key = kind == 'retry' and retry or stream, arrived = tonumber(arrived), lives = lives == '1' }
end

local function write_released(entry_id, released)
  redis.call('HSET', quarantine, entry_id, string.format('%s,%s,%d', released.key == retry and 'retry' or 'stream',
    released.arrived and digits(released.arrived) or '', released.lives and 1 or 0))
end

-- Returns 'ready', 'quarantine' or 'dead', and the reason. Before its last delivery a job is quarantined. It becomes a dead letter only if
-- it was released and its worker reported that it began. A process that died after that ran no other job.
local function fate_of(job, row, count, limit)
  if is_given_back(row) then
    return count < limit and 'ready' or 'dead', 'given_back'
  elseif not job.quarantined and count < limit - 1 then
    return 'ready', 'visibility_timeout'
  elseif not job.quarantined and count < limit then
    return 'quarantine', 'last_delivery'
  elseif limit == 1 or count >= FATAL then
    return 'dead', 'max_deliveries'
  end
  local released = read_released(redis.call('HGET', quarantine, row[1]) or nil)
  if not released then
    return 'quarantine', 'not_released' -- so it may have run beside others
  elseif (row[2] == RETURNED or string.find(row[2], OUR_CONSUMER)) and released.arrived ~= row[4] then
    return 'quarantine', 'never_arrived'
  end
  return count < limit and 'quarantine' or 'dead', 'max_deliveries'
end

local traced = {} -- of each traced job: entry ID, traceparent, tracestate and generation
local EVENT_OF = { ready = 'recovered', quarantine = 'quarantined', dead = 'dead_lettered' }

local recovered = 0 -- jobs that are ready or quarantined again

-- Ends an overdue delivery. `job` is nil if the payload was deleted. `take` claims a delivery for the caller, or returns false without room for
-- it. Last deliveries are never claimed, they are quarantined. Returns nil, or why the delivery is held.
local function recover(row, job, in_force, take)
  -- The idle time of an entry that was given back is no time: it is -1, or puts the entry in its order.
  local entry_id, consumer, idle = row[1], row[2], is_given_back(row) and '' or digits(row[3])
  if not job then
    redis.call('XACK', source, group, entry_id)
    count_lost_payload()
    return tell('lost_payload', consumer, digits(row[4]), '', entry_id, entry_id, '0', idle, '')
  end
  local limit = in_force.max_deliveries
  local count = count_of(job, row[4], limit)
  local fate, reason = fate_of(job, row, count, limit)
  if job.traceparent then
    traced[#traced + 1] = { entry_id, job.traceparent, job.tracestate, job.generation }
  end
  pass_on(job, consumer)
  local new_entry, why
  if reason == 'visibility_timeout' and take(row) then
    new_entry = entry_id
  elseif fate == 'dead' then
    new_entry, why = give_up(job, row, count, 'max_deliveries', 'not settled within the visibility timeout', '')
  else
    job.quarantined = job.quarantined or fate == 'quarantine'
    new_entry, why = make_ready(job, row, in_force, math.min(count, limit - 1))
  end
  if not new_entry then
    return why
  end
  recovered = recovered + (fate == 'dead' and 0 or 1)
  tell(EVENT_OF[fate], consumer, digits(count), reason, entry_id, job.id, job.generation, idle, new_entry)
end
