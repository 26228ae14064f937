-- Tells whether a delivery that is not pending for its consumer any more was taken by mistake, and given back under its count; or
-- dropped by somebody's XGROUP DELCONSUMER or DESTROY:
-- nobody holds it, and its payload is there. From a retry stream nobody of ours takes a
-- delivery without deleting the entry, but for a dead letter: it has had all its deliveries. Elsewhere an entry that another one
-- took over where it is (embedded, or a later process of the same name) and settled lies there as if it had vanished, and only time
-- tells: nobody of ours takes a delivery that was proven alive (`proven`, the server's ms) less than a visibility timeout ago: the one
-- that deliveries are judged by (group_terms), for its worker may not have heard of a shorter one. Two thirds of it, since
-- clocks differ; and not in the future, for they are set, too. A later process of the same name does not wait for that; so
-- it must have been proven alive since the word stands (read_word).
-- What embedded workers have not set stands in the word.
local MARKER_CONSUMER = 'marked-by-reaper' -- holds nothing: the leader recognizes the group by it (keep_house.lua)
local function was_returned(row, times)
  return row and row[2] == RETURNED_CONSUMER and row[4] == times
end

-- What the journal tells of how a delivery ended since a moment: 'over' where the group has settled the job for good, 'ended' where it was
-- given back or the like, or is over in some group, 'open' where it tells of no end, nothing where it does not reach so far, or has too much
-- to tell. (A group's name that JSON writes otherwise is not known again.)
local told_end
do
  local MOST_TOLD, MOST_LOOKS = 200, 8
  local GOES_ON = { delivered = true, started = true, extended = true, refused = true }
  local looks = {} -- each: since when, whether it tells of all, and by entry or job ID when one ended last, and was over

  local function note_end(known, group, event, ms)
    local data = event.data or ''
    local is_ours = string.match(data, '"group":"([^"]*)"') == group
    for entry_id in string.gmatch(data, '"(%d+%-%d+)"') do
      known.ended[entry_id] = ms
      known.over[entry_id] = is_ours and event.event == 'acked' and ms or known.over[entry_id]
    end
    local given_up = is_ours and event.event == 'dead_lettered' and string.match(data, '"entry":"(%d+%-%d+)"')
    if given_up then
      known.over[given_up] = ms
    end
  end

  local function look(journal, group, since)
    local known = { since = since, is_all = false, ended = {}, over = {} }
    local oldest = redis.pcall('XRANGE', journal, '-', '+', 'COUNT', 1)
    local rows = oldest[1] and redis.pcall('XRANGE', journal, string.format('%.0f', since), '+', 'COUNT', MOST_TOLD) or {}
    for _, row in ipairs(rows) do
      local event = {}
      for i = 1, #row[2], 2 do
        event[row[2][i]] = row[2][i + 1]
      end
      if not GOES_ON[event.event] then
        note_end(known, group, event, entry_ms(row[1]))
      end
    end
    known.is_all = oldest[1] and entry_ms(oldest[1][1]) < since and not rows.err and #rows < MOST_TOLD
    return known
  end

  told_end = function(journal, group, entry_id, since)
    local found
    for _, known in ipairs(looks) do
      found = found or (known.since == since or (known.is_all and known.since < since)) and known
    end
    if not found and #looks < MOST_LOOKS then
      found = look(journal, group, since)
      looks[#looks + 1] = found
    end
    if not found then
      return nil
    elseif (found.over[entry_id] or 0) >= since then
      return 'over'
    end
    return (found.ended[entry_id] or 0) >= since and 'ended' or found.is_all and 'open' or nil
  end
end

-- Counts an entry that somebody deleted although it was pending, for `reaper status`.
local function count_lost_payload(agreement)
  redis.pcall('HINCRBY', agreement, 'lost_payload', 1)
  redis.pcall('HSET', agreement, 'lost_payload_ms', string.format('%.0f', now_ms()))
end

local has_vanished, is_taken, is_deleted
do
  -- What a consumer's worker has joined with, or nothing where it gives no word. It may be silent for the shorter of what others judge
  -- it by, and what it has gone by itself: a longer timeout that was agreed on while it was silent says nothing of who took its
  -- deliveries before.
  local function terms_of_word(agreement, consumer)
    local agreed = redis.call('HMGET', agreement, 'policy', 'max_deliveries', 'visibility_ms', 'recovery', 'member:' .. consumer)
    local word = read_word(agreed[5])
    if not word then
      return nil
    end
    local visibility, limit = whole_number(agreed[3], word.visibility), whole_number(agreed[2], word.max_deliveries)
    visibility, limit = group_terms(agreement, visibility, limit, now_ms())
    return {
      silence = math.min(visibility, word.visibility), max_deliveries = limit, since = word.since,
      policy = agreed[1], has_rules = agreed[1] or agreed[4] == 'embedded',
    }
  end

  local function was_proven_lately(proven, terms)
    local ago = proven and now_ms() - proven
    return ago and ago >= 0 and ago * 3 <= terms.silence * 2 and proven >= terms.since
  end

  has_vanished = function(source, stream, group, agreement, consumer, entry_id, times, proven, journal)
    local row = redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1]
    if was_returned(row, times) then
      return true
    end
    local terms = terms_of_word(agreement, consumer)
    if not terms then
      return false
    end
    local is_safe = terms.has_rules and was_proven_lately(proven, terms)
    if source == stream and not is_safe then
      return false
    end
    local entry = redis.call('XRANGE', source, entry_id, entry_id)[1]
    if not entry or row then
      return false
    end
    local position = group_position(source, group)
    if position and is_after(entry_id, position) then
      return false -- the server has lost that it was ever delivered: it is ready, and will be delivered anew
    end
    if journal and proven and told_end(journal, group, entry_id, proven) == 'over' then
      return false -- the server has lost this delivery, and another one was settled
    end
    return is_safe or delivery_count(open_entry(entry_id, entry[2]), times, terms.max_deliveries) < terms.max_deliveries
  end

  -- Tells whether somebody has deleted an entry together with its pending references: XDELEX, XACKDEL, trimming with DELREF, XACK and
  -- XDEL. A recovery that copies the job leaves the same behind, so the delivery must have been proven lately: nobody recovers that.
  is_deleted = function(source, group, agreement, consumer, entry_id, proven)
    if redis.call('XRANGE', source, entry_id, entry_id)[1] or redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1] then
      return false
    end
    local terms = terms_of_word(agreement, consumer)
    return terms and was_proven_lately(proven, terms)
  end

  -- Tells whether a read with CLAIM has just taken a delivery from whoever lives and says that it is his, its own reads included: to the
  -- server what was handed out in the future is idle for longer than anything. It will be given back (return_taken.lua), so nothing is
  -- told of it until then. One that was taken by right was given no proof of for longer than this.
  is_taken = function(source, group, agreement, consumer, entry_id, times, proven)
    local row = proven and redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1]
    if not row or row[4] ~= times + 1 or laid_aside_as(row[2]) then
      return false
    end
    local terms = terms_of_word(agreement, consumer)
    return terms and terms.policy == 'in-place' and (proven > now_ms() or was_proven_lately(proven, terms))
  end
end

-- Reads what a worker says of a delivery that it holds: its delivery count and, where it says so, behind commas, when it was
-- proven alive last and until when that counts, by the server's clock in ms. For a call may arrive when whoever sent it has given it
-- up and settled by another one: what is done would look as if it had vanished, and be done once more. Third, whether it came too
-- late for that: then what is not pending is neither taken back nor refused, but to be asked for again, by whoever still waits. Fourth,
-- whether the worker knows already that the payload is gone: the word ends with `,lost`.
local read_count
do
  local asked, is_late -- all that a call says counts until the same moment
  read_count = function(word)
    local times, proven, until_ms, lost = string.match(word, '^(%d+),(%d+),?(%d*)(,?l?o?s?t?)$')
    if until_ms ~= asked then
      asked, is_late = until_ms, until_ms and until_ms ~= '' and now_ms() > tonumber(until_ms)
    end
    return tonumber(times or word), not is_late and tonumber(proven or '') or nil, times and is_late, lost == ',lost'
  end
end

-- Makes such a delivery its consumer's again.
local function hold_again(source, group, consumer, entry_id, times)
  redis.call('XCLAIM', source, group, consumer, 0, entry_id, 'RETRYCOUNT', times, 'FORCE', 'JUSTID')
end

