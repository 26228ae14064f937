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

