-- What is given back where it is (policy `in-place`) stays pending under a consumer of ours. `READY_CONSUMER` holds what is ready:
-- idle for so long that every reader with CLAIM takes it. `WAITING_CONSUMER` holds what stands in the schedule, by a member that
-- names the entry alone; the leader's looks keep it young (recovery), so that it is claimable by itself where none lives.
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

