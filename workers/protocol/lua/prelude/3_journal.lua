-- The journal: events as flat fields. Values that several jobs share are written once. The rest is in columns: values joined by commas, all
-- columns of an event of equal length. A column without information is left out. (An ID holds no comma, so nothing is escaped.)

local function write_event(fields)
  if maxlen > 0 then
    redis.pcall('XADD', journal, 'MAXLEN', '~', maxlen, '*', unpack(fields))
  end
end

local MOST_ROWS = 100 -- of an event
local COLUMNS = { 'job', 'generation', 'idle_ms', 'new_entry' }
local events, by_head, newest = {}, {}, {}

-- Notes an event of a job, for `write_events`. Jobs that follow each other mostly belong to the same event.
local function tell(event, consumer, delivery, reason, entry_id, job_id, generation, idle_ms, new_entry)
  local pile = newest
  if pile.event ~= event or pile.consumer ~= consumer or pile.delivery ~= delivery or pile.reason ~= reason or pile.n == MOST_ROWS then
    local head = event .. reason .. delivery .. consumer
    pile = by_head[head]
    if not pile or pile.n == MOST_ROWS then
      pile = { n = 0, event = event, consumer = consumer, delivery = delivery, reason = reason, entry = {}, job = {}, idle_ms = {},
        new_entry = {}, generation = {} }
      by_head[head], events[#events + 1] = pile, pile
    end
    newest = pile
  end
  local n = pile.n + 1
  pile.n, pile.entry[n], pile.job[n], pile.idle_ms[n], pile.new_entry[n], pile.generation[n] = n, entry_id, job_id, idle_ms, new_entry, generation
end

local function fields_of(pile, more)
  local fields = { 'event', pile.event, 'group', group, 'consumer', pile.consumer, 'delivery', pile.delivery }
  local function put(name, value)
    fields[#fields + 1], fields[#fields + 2] = name, value
  end
  for i = 1, #more, 2 do
    put(more[i], more[i + 1])
  end
  if pile.reason ~= '' then
    put('reason', pile.reason)
  end
  local entry = table.concat(pile.entry, ',')
  put('entry', entry)
  for _, name in ipairs(COLUMNS) do
    local column = table.concat(pile[name], ',')
    local is_default = name == 'job' and column == entry or name == 'generation' and not string.find(column, '[^0,]')
    if not is_default and string.find(column, '[^,]') then
      put(name, column)
    end
  end
  return fields
end

-- Writes all noted events, with the fields `more`. Returns the same events for the caller.
local function write_events(more)
  local told = {}
  for i, pile in ipairs(events) do
    told[i] = fields_of(pile, more)
    write_event(told[i])
  end
  return told
end

-- Returns nil if the caller may recover in the group, else the reply with the reason.
local function declining_reply(in_force, holder, lease, verb, token)
  local may, found = may_serve(holder, lease, in_force and in_force.recovery)
  if may then
    return not in_force and { 'unknown' } or in_force.paused and { 'paused' } or nil
  end
  redis.pcall('HINCRBY', settings, 'fenced', 1)
  write_event({ 'event', 'fenced', 'group', group, 'verb', verb, 'token', token, 'lease', found })
  return { 'fenced', found }
end
