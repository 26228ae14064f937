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
  if not job_id or #job_id == 0 or #job_id > MAX_JOB_ID_BYTES or string.find(job_id, '[,%c]') then
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
