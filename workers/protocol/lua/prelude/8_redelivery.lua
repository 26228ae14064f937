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
    probe_claim(source, group) -- else it would stand in the schedule, and be pending for its worker still
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
-- pending again where that consumer is missing: of `MARKER_CONSUMER` and overdue, to be recovered as any.
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
    local position = group_position(source, group)
    return position ~= nil and not is_after(entry_id, position)
  end

  -- Returns how many are named there, or nothing where one is not a worker of ours, or may have been cut off.
  local function count_ours(consumers)
    local count = 0
    for name in string.gmatch(consumers, '[^,]+') do
      if string.find(name, OUR_CONSUMER) then
        count = count + 1
      elseif name ~= MARKER_CONSUMER then
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
        redis.call('XCLAIM', source, group, MARKER_CONSUMER, 0, entry_id, 'IDLE',
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
