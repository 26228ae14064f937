-- The beat: when the server could last serve a heartbeat.
--
-- A script notes a beat only after it has run or probed every command that a heartbeat needs. So a beat means that a live worker could
-- have extended its deliveries at that moment. Between two beats there may have been an outage, a frozen server, a failover, a step of the
-- clock, or a missing permission: all look the same here, and none has to be recognized. After a gap of more than a third of the
-- visibility timeout, recovery waits for one visibility timeout, because live workers send their next heartbeat in that time.
--
-- Fields of the group settings ({orders}:group:billing): `beat` (server time of the last beat, in ms), `unbroken` (server time since which
-- there was no gap, in ms), `gap` (length of the last gap in ms, 0 = there was no beat before), and `former_left` (for how many ms the
-- former values still count: only time without a gap is taken off). `read_settings` reads them.

local GAP_PART = 3 -- a gap counts from this part of the visibility timeout on

-- Runs the commands of a heartbeat behind XPENDING in a form that changes nothing. Raises the error of a command that is not permitted. From
-- 7.0 on, XCLAIM without a result would create the consumer, so there the permission is asked for, and the call is made only if it is missing.
local function probe_claim(key)
  redis.call('XRANGE', key, '0-0', '0-0')
  local is_known, may = pcall(redis.acl_check_cmd or error, 'XCLAIM', key, group, 'none-by-reaper', '0', '0-0', 'JUSTID')
  if not (is_known and may) then
    redis.call('XCLAIM', key, group, 'none-by-reaper', '0', '0-0', 'JUSTID')
  end
end

local function probe_heartbeat(key)
  redis.call('XPENDING', key, group, '0-0', '0-0', 1)
  probe_claim(key)
end

-- Returns whether there is a gap between the last beat and now. Both numbers are above 0 if they are numbers.
local function has_gap(in_force)
  return in_force.beat * in_force.unbroken == 0 or math.abs(at - in_force.beat) * GAP_PART > in_force.own_visibility_ms
end

-- Returns for how many ms recovery has to wait, 0 = it does not, or the group has no settings.
local function recovery_waits_ms(in_force)
  if not in_force then
    return 0
  end
  local unbroken = has_gap(in_force) and at or math.min(in_force.unbroken, at)
  return math.max(0, unbroken + in_force.visibility_ms - at)
end

-- Notes a beat in the group settings. The caller has written (open_for_writing) and has run or probed the commands of a heartbeat
-- (probe_heartbeat). Without settings no beat is stored.
local function note_beat(in_force)
  if not in_force then
    return
  end
  local last = in_force.beat
  if has_gap(in_force) then
    in_force.gap, in_force.unbroken = last > 0 and math.abs(at - last) or 0, at
    redis.call('HSET', settings, 'gap', digits(in_force.gap))
  elseif in_force.former_left > 0 then
    redis.call('HSET', settings, 'former_left', digits(math.max(0, in_force.former_left - math.max(0, at - last))))
  end
  in_force.beat, in_force.unbroken = at, math.min(in_force.unbroken, at) -- the clock may have been set back by less than counts as a gap
  redis.call('HSET', settings, 'beat', digits(at), 'unbroken', digits(in_force.unbroken))
end
