-- dropped with its consumer -> pending again, or told: somebody else has deleted a consumer that held deliveries.
--
-- Redis drops what a deleted consumer held, and that looks like an acknowledgement. A worker of ours that leaves takes its word
-- away with its consumer (delete_consumer.lua), and so does who deletes silent ones (keep_house.lua): a word whose consumer is gone
-- says that it was somebody else, and what it held is put back. Not while the word counts: a worker that lives holds again by
-- itself what it runs (hold_again.lua), and what it has settled since must not run again. Without a word a consumer of ours has
-- left by itself. A foreign worker gives no word: whether it acknowledged and went, or was deleted, nobody can know. That is
-- told, and nothing is done. What was put back before is nobody's until a worker of ours takes it, or we do: it is put back again.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream whose pending entries are meant
-- KEYS[2] fence      {orders}:fence:billing              string
-- KEYS[3] agreement  {orders}:group:billing              hash
-- KEYS[4] journal    {orders}:journal                    stream
-- ARGV[1] fence of the caller  ARGV[2] group  ARGV[3] the consumer that is gone
-- ARGV[4] idle in ms that is given to what is put back; where some worker of ours lives, no more than the consumer's word has
--         ended for: it may live, and run it
-- ARGV[5] when the group was made, as of the caller's last look (ms)
-- ARGV[6] journal: '1' = write events  ARGV[7] journal's MAXLEN  ARGV[8] the caller's token
-- ARGV[9] field of the agreement in which it is noted what waits, for the leader that may follow
-- ARGV[10] '' = put back; '-' = nothing waits any more; else where the journal ended when all of it was pending: it is only noted
-- ARGV[11…] entry IDs that were pending for it, and are not any more; none: it is only asked what would be done
--
-- Returns {'ok', entries put back, entries of which nobody can know}, {'waits', until when its word counts (server's ms), visibility
-- timeout that it lives by, in ms} (its worker may live: nothing was done), {'made'} (the group is another one), or
-- {'stale', fence found}.
-- Entries that are pending (again), or whose payload is gone, were not lost. Raises NOGROUP where the group is gone.
-- Fence: the whole value is compared.

--- @prelude
--- @heartbeat

local source, fence, agreement, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local own, group, consumer, idle = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local write_journal, maxlen, token = ARGV[6] == '1', ARGV[7], ARGV[8]
local made = tonumber(ARGV[5])
local field, what = ARGV[9], ARGV[10]
local first = 11

local found = redis.call('GET', fence) or ''
if found ~= own then
  return { 'stale', found }
end
if whole_number(redis.call('HGET', agreement, 'made'), 0) > made then
  return { 'made' }
end
open_for_writing(source, group)
if what == '-' then
  redis.call('HDEL', agreement, field)
  return { 'ok', 0, 0 }
elseif what ~= '' then
  redis.call('HSET', agreement, field, string.format('%.0f', made) .. ' ' .. what .. ' ' .. table.concat(ARGV, ' ', first))
  return { 'ok', 0, 0 }
end
local position
for _, info in ipairs(redis.call('XINFO', 'GROUPS', source)) do
  if info_field(info, 'name') == group then
    position = info_field(info, 'last-delivered-id')
  end
end
if not position then -- else nothing would seem to be lost
  return redis.error_reply("NOGROUP No such consumer group '" .. group .. "' for key '" .. source .. "'")
end
local at, given = now_ms(), redis.call('HGET', agreement, 'member:' .. consumer)
local is_certain, word = given ~= false or consumer == RESTORED_CONSUMER, read_word(given or '')
if not is_certain and string.find(consumer, OUR_CONSUMER) then
  return { 'ok', 0, 0 }
end
-- While recovery waits, a word may have ended by a step of the clock alone, or because its worker could not join again.
local waits_ms = recovery_waits_ms(read_beat(agreement, at), at, 0)
if word and (word.until_ms > at or waits_ms > 0) then
  return { 'waits', math.max(word.until_ms, at + waits_ms), word.visibility }
end
if waits_ms > 0 or some_word_counts(agreement, at) then
  idle = word and math.min(idle, at - word.until_ms) or 0
end

local n = 0
for i = first, #ARGV do
  local entry_id = ARGV[i]
  local entry = redis.call('XRANGE', source, entry_id, entry_id)[1]
  -- What lies behind the group's position is delivered anew anyway.
  if entry and not is_after(entry_id, position) and #redis.call('XPENDING', source, group, entry_id, entry_id, 1) == 0 then
    n = n + 1
    if is_certain then
      redis.call('XCLAIM', source, group, RESTORED_CONSUMER, 0, entry_id, 'IDLE', idle, 'RETRYCOUNT', 1, 'FORCE', 'JUSTID')
    end
    if write_journal then
      local job = open_entry(entry_id, entry[2])
      journal_event(journal, maxlen, 'lost_delivery', job.job_id, '{"v":1,"group":' .. json_string(group)
        .. ',"mode":"reaper","token":' .. token .. ',"entry":"' .. entry_id .. '","consumer":' .. json_string(consumer)
        .. ',"generation":' .. job.generation .. ',"enqueued_ms":' .. job.first_ms
        .. ',"put_back":' .. (is_certain and 'true' or 'false') .. '}')
    end
  end
end
return { 'ok', is_certain and n or 0, is_certain and 0 or n }
