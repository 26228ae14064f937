-- The beat: when the server could last serve a heartbeat. Put in place of `--- @heartbeat` by workers/protocol/scripts.py.
--
-- A script notes a beat only after it has run or probed every command that a heartbeat needs. So a beat means that a live worker could
-- have extended its deliveries at that moment. Between two beats there may have been an outage, a frozen server, a failover, a step of the
-- clock, or a missing permission: all look the same here, and none has to be recognized. After a gap of more than a third of the
-- visibility timeout, recovery waits for one visibility timeout, because live workers send their next heartbeat in that time.
--
-- Fields of the group settings ({orders}:group:billing): `beat` (server time of the last beat, in ms), `unbroken` (server time since which
-- there was no gap, in ms), `gap` (length of the last gap in ms, 0 = there was no beat before).

local FORMER_MS = 35000 -- workers read the group settings every 30 s (REFRESH_S in workers/loop/membership.py), and a call takes up to 5 s

-- Raises what Redis answers to an XCLAIM that it does not allow, and changes nothing. From 7.0 on, XCLAIM without a result would create
-- the consumer, so there the permission is asked for, and the call is made only if it is missing.
local function probe_claim(stream, group)
  local is_known, may = pcall(redis.acl_check_cmd or error, 'XCLAIM', stream, group, 'none-by-reaper', '0', '0-0', 'JUSTID')
  if not (is_known and may) then
    redis.call('XCLAIM', stream, group, 'none-by-reaper', '0', '0-0', 'JUSTID')
  end
end

-- Runs the commands of a heartbeat in a form that changes nothing. Raises what Redis answers to one that it does not allow.
local function probe_heartbeat(stream, group)
  redis.call('XPENDING', stream, group, '0-0', '0-0', 1)
  redis.call('XRANGE', stream, '0-0', '0-0')
  probe_claim(stream, group)
end

-- Returns the beat as it is stored, and, as `has_gap`, whether there is a gap between it and `at`.
local function read_beat(settings, at)
  local GAP_PART = 3 -- a gap counts from this part of the visibility timeout on
  local values = redis.call('HMGET', settings, 'beat', 'unbroken', 'gap', 'visibility_ms', 'former_until', 'former_visibility_ms')
  local beat = {
    last = whole_number(values[1], nil), unbroken = whole_number(values[2], nil), gap = whole_number(values[3], 0),
    visibility = whole_number(values[4], nil),
    former_until = whole_number(values[5], nil), former_visibility = whole_number(values[6], 0),
  }
  beat.has_gap = not beat.last or not beat.unbroken or math.abs(at - beat.last) * GAP_PART > (beat.visibility or 0)
  return beat
end

-- Returns for how many ms recovery has to wait, 0 = it does not. `visibility`: the timeout of a group whose settings have none.
local function recovery_waits_ms(beat, at, visibility)
  if not beat.visibility then
    return visibility
  end
  local unbroken, longest = beat.has_gap and at or math.min(beat.unbroken, at), beat.visibility
  if (beat.former_until or 0) > at then
    longest = math.max(longest, beat.former_visibility)
  end
  return math.max(0, unbroken + longest - at)
end

-- Notes a beat. The caller has written (open_for_writing) and has run or probed the commands of a heartbeat (probe_heartbeat).
-- Returns the server time in ms, and the beat as it is stored now. Without a visibility timeout in the group settings nothing is stored.
local function note_beat(settings)
  local at = now_ms()
  local beat = read_beat(settings, at)
  if not beat.visibility then
    return at, beat
  end
  if beat.has_gap then
    if beat.last and beat.former_until then -- what was left of it before the gap is left after it, whatever happened to the clock
      beat.former_until = at + math.min(FORMER_MS, math.max(0, beat.former_until - beat.last))
      redis.call('HSET', settings, 'former_until', string.format('%.0f', beat.former_until))
    end
    beat.gap, beat.unbroken = beat.last and math.abs(at - beat.last) or 0, at
    redis.call('HSET', settings, 'gap', string.format('%.0f', beat.gap))
  end
  beat.last, beat.has_gap, beat.unbroken = at, false, math.min(beat.unbroken, at) -- the clock may have been set back by less than counts as a gap
  redis.call('HSET', settings, 'beat', string.format('%.0f', at), 'unbroken', string.format('%.0f', beat.unbroken))
  return at, beat
end

-- Restarts the idle time of a delivery for which Redis reports 0. Either it was delivered just now, which changes nothing, or its delivery
-- time lies in the future because the clock was set back, and Redis would report 0 until then. An entry without a payload is left alone:
-- from Redis 7.0 on, XCLAIM would drop it from the pending entries list unseen.
local function start_over(source, group, row)
  if row[3] == 0 and #redis.call('XRANGE', source, row[1], row[1]) > 0 then
    redis.call('XCLAIM', source, group, row[2], 0, row[1], 'JUSTID')
  end
end
