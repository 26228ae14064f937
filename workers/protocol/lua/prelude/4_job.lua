-- A job, read from its entry. The fields are checked, because entries come from outside.

local MAX_CONSUMERS_BYTES = 1024
local FATAL = 9007199254740992 -- 2^53: a delivery count above it is a FATAL XNACK, and no number
local OURS = {}
for _, name in ipairs({ 'job', 'deliveries', 'generation', 'first_ms', 'consumers', 'copies', 'waits', 'hand_backs', 'quarantined' }) do
  OURS['reaper.' .. name] = true
end

-- Splits the fields of an entry into those of the user, in order, and ours. A number field with other content counts as absent. Most entries have
-- none of ours: then `user` is the table `fields` itself.
local function open_job(entry_id, fields)
  local found, user, n, bytes, visibility, traceparent, tracestate = {}, fields, #fields, 0, 0, nil, ''
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    bytes = bytes + #name + #value
    if OURS[name] then
      if user == fields then
        user, n = {}, i - 1
        for k = 1, n do
          user[k] = fields[k]
        end
      end
      found[name] = value
    else
      if user ~= fields then
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
  local job_id = found['reaper.job'] or ''
  if #job_id == 0 or #job_id > 256 or string.find(job_id, '[,%c]') then
    job_id = entry_id
  end
  -- The producer samples the trace (W3C: the last bit of the flags), so a recovery has a span.
  local traced = traceparent and #traceparent >= 55 and string.find(traceparent, '^%x%x%-%x+%-%x+%-%x[13579bdf]') ~= nil
  local waits, hand_backs = whole_number(found['reaper.waits'], 0), whole_number(found['reaper.hand_backs'], 0)
  return {
    entry = entry_id, id = job_id, user = user, bytes = bytes, visibility_ms = visibility, quarantined = found['reaper.quarantined'] ~= nil,
    traceparent = traced and traceparent or nil, tracestate = tracestate,
    deliveries = whole_number(found['reaper.deliveries'], 0), generation = whole_digits(found['reaper.generation'], '0'),
    first_ms = whole_digits(found['reaper.first_ms'], string.match(entry_id, '^%d+')),
    consumers = string.sub(found['reaper.consumers'] or '', -MAX_CONSUMERS_BYTES), copies = whole_number(found['reaper.copies'], 0),
    waits = waits, hand_backs = hand_backs, said_waits = waits, said_hand_backs = hand_backs, -- `said_*`: by the entry itself
  }
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
