-- pending -> ready | scheduled | dead: a worker settles deliveries of one source with other verdicts than an ack (ack.lua).
--
-- KEYS[1] to KEYS[8] as in keys.lua
-- ARGV[1] group  ARGV[2] journal's MAXLEN  ARGV[3] consumer  ARGV[4] caller  ARGV[5] number of the call (ack.lua)
-- ARGV[6…] items: verb, entry ID, times delivered, delay in ms, reason, error, traceback, number of words for the journal, these words
--   nack       failed, counts; if no delivery is left, a dead letter
--   retry      to be tried again, does not count
--   hand_back  ready at once, as if it had not been delivered; with a reason (the handler had begun) `reaper.hand_backs` + 1
--   reject     a dead letter now
--
-- Returns a result for each: 1 done, 0 rejected (it is not ours any more), {2, ID of the dead letter}, {4, why it is held},
-- 6 lost: its payload was deleted, so it cannot run again.
-- Raises NOGROUP, NOSETTINGS (join first), OLDCALL (a later call was carried out).
-- Fence: consumer and times delivered, because a late verdict of a former owner would take the job from its present one.

--- @keys
--- @prelude

local consumer, caller, number = ARGV[3], ARGV[4], ARGV[5]
local first = 6

-- The kept reply. A worker numbers its settlements, and sends the next one when the last one is answered. A call that is sent again has
-- its number, and gets the kept reply, so it has its effect once.
local who, last, answer = string.match(redis.call('HGET', settings, 'settled:' .. consumer) or '', '^(%S+) (%d+) (.*)$')
if who == caller and tonumber(number) <= tonumber(last) then
  return number == last and cmsgpack.unpack(answer) or redis.error_reply('OLDCALL a later call was carried out')
end
local in_force = read_settings()
if not in_force then
  return redis.error_reply(NO_SETTINGS)
end
open_for_copies()

local EVENT_OF_VERB = { nack = 'nacked', retry = 'nacked', hand_back = 'handed_back' }
local LONGEST_DELAY_MS = 316224000000 -- ten years

-- Ends a delivery that is still ours. Returns the result, the event, and its new entry.
local function end_delivery(verb, entry_id, times, delay, reason, error, traceback)
  local row = pending_row(entry_id)
  if not row or is_left[entry_id] or row[2] ~= consumer and row[2] ~= RETURNED or row[4] ~= times or is_given_back(row) then
    return 0, 'rejected', ''
  end
  local entry = entry_of(entry_id)
  if not entry then
    redis.call('XACK', source, group, entry_id)
    count_lost_payload()
    return verb == 'reject' and 1 or 6, 'lost_payload', ''
  end
  local job, limit = open_job(entry_id, entry[2]), in_force.max_deliveries
  local count = count_of(job, times, limit)
  pass_on(job, consumer)
  if verb == 'reject' or verb == 'nack' and count >= limit then
    local letter, why = give_up(job, row, count, reason, error, traceback)
    return letter and { 2, letter } or { 4, why }, letter and 'dead_lettered' or 'held', letter or ''
  end
  local is_hand_back = verb == 'hand_back'
  job.waits = verb == 'retry' and job.waits + 1 or is_hand_back and job.waits or 0
  job.hand_backs = is_hand_back and job.hand_backs + (reason ~= '' and 1 or 0) or 0
  local due = delay > 0 and at + math.min(delay, LONGEST_DELAY_MS) or nil
  local id, why = make_ready(job, row, in_force, verb == 'nack' and count or math.min(count, limit) - 1, due)
  return id and 1 or { 4, why }, id and EVENT_OF_VERB[verb] or 'held', id or ''
end

local results, rejected, item = {}, 0, first
while ARGV[item] do
  local verb, entry_id, reason, n_words = ARGV[item], ARGV[item + 1], ARGV[item + 4], tonumber(ARGV[item + 7])
  local result, event, new_entry = end_delivery(verb, entry_id, tonumber(ARGV[item + 2]), tonumber(ARGV[item + 3]), unpack(ARGV, item + 4, item + 6))
  results[#results + 1] = result
  rejected = rejected + (result == 0 and 1 or 0)
  if event ~= 'held' then
    write_event({ 'event', event, 'group', group, 'consumer', consumer, 'entry', entry_id, 'verb', verb,
      'reason', event == 'nacked' and reason == 'max_deliveries' and '' or reason, event == 'dead_lettered' and 'dead_letter' or 'new_entry', new_entry, unpack(ARGV, item + 8, item + 7 + n_words) })
  end
  item = item + 8 + n_words
end
local broken = finish(in_force)
if rejected > 0 then
  redis.call('HINCRBY', settings, 'rejected', rejected)
end
redis.call('HSET', settings, 'settled:' .. consumer, caller .. ' ' .. number .. ' ' .. cmsgpack.pack(results))
return broken or results
