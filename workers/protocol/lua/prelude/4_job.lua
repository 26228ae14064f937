-- A job, read from its entry. The fields are checked, because entries come from outside.

local MAX_CONSUMERS_BYTES = 1024
local FATAL = 9007199254740992 -- 2^53: a delivery count above it is a FATAL XNACK, and no number
local OURS = {}
for _, name in ipairs({ 'job', 'deliveries', 'generation', 'first_ms', 'consumers', 'copies', 'waits', 'hand_backs', 'quarantined' }) do
  OURS['reaper.' .. name] = true
end

-- A job whose entry has none of our fields.
local AS_PRODUCED = { __index = { quarantined = false, deliveries = 0, generation = '0', consumers = '', copies = 0, waits = 0, hand_backs = 0,
  said_waits = 0, said_hand_backs = 0 } } -- `said_*`: by the entry itself

-- Splits the fields of an entry into those of the user, in order, and ours. A number field with other content counts as absent. Most entries have
-- none of ours: then `user` is the table `fields` itself.
local function open_job(entry_id, fields)
  local found, user, n, bytes, visibility, traceparent, tracestate = nil, fields, #fields, 0, 0, nil, ''
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    bytes = bytes + #name + #value
    if OURS[name] then
      if not found then
        found, user, n = {}, {}, i - 1
        for k = 1, n do
          user[k] = fields[k]
        end
      end
      found[name] = value
    else
      if found then
        user[n + 1], user[n + 2] = name, value
        n = n + 2
      end
      if name == 'traceparent' then
        traceparent = value
      elseif name == 'tracestate' then
        tracestate = value
      elseif name == 'reaper.visibility_ms' then
        visibility = whole_number(value, 0)
      end
    end
  end
  -- The producer samples the trace (W3C: the last bit of the flags), so a recovery has a span.
  local traced = traceparent and #traceparent >= 55 and string.find(traceparent, '^%x%x%-%x+%-%x+%-%x[13579bdf]') ~= nil
  local job = setmetatable({ entry = entry_id, id = entry_id, user = user, bytes = bytes, visibility_ms = visibility,
    traceparent = traced and traceparent or nil, tracestate = tracestate, first_ms = string.match(entry_id, '^%d+') }, AS_PRODUCED)
  if found then
    local job_id = found['reaper.job'] or ''
    if #job_id > 0 and #job_id <= 256 and not string.find(job_id, '[,%c]') then
      job.id = job_id
    end
    job.quarantined, job.deliveries = found['reaper.quarantined'] ~= nil, whole_number(found['reaper.deliveries'], 0)
    job.generation, job.first_ms = whole_digits(found['reaper.generation'], '0'), whole_digits(found['reaper.first_ms'], job.first_ms)
    job.consumers = string.sub(found['reaper.consumers'] or '', -MAX_CONSUMERS_BYTES)
    job.copies, job.waits = whole_number(found['reaper.copies'], 0), whole_number(found['reaper.waits'], 0)
    job.hand_backs = whole_number(found['reaper.hand_backs'], 0)
    job.said_waits, job.said_hand_backs = job.waits, job.hand_backs
  end
  return job
end

-- Returns how many deliveries count, this one included. With any number from a producer, each entry is executed at least once.
local function count_of(job, times, max_deliveries)
  return times >= FATAL and FATAL or math.min(job.deliveries, max_deliveries - 1) + times
end

-- Notes which consumer had the job.
local shown = {} -- consumers, by name: a list of them is split by commas
local function pass_on(job, consumer)
  local name = shown[consumer]
  if not name then
    name = string.sub(string.gsub(consumer, '[,%c]', '_'), -MAX_CONSUMERS_BYTES)
    shown[consumer] = name
  end
  job.consumers = job.consumers == '' and name or string.sub(job.consumers .. ',' .. name, -MAX_CONSUMERS_BYTES)
end

-- Counts an entry that a third party deleted while it was pending, for `reaper status`.
local function count_lost_payload()
  redis.pcall('HINCRBY', settings, 'lost_payload', 1)
  redis.pcall('HSET', settings, 'lost_payload_ms', digits(at))
end
