-- pending -> done: a worker acknowledges many deliveries of one source. The first acknowledgment of an entry wins, also if another consumer
-- has the entry by now, because XACK answers 1 only once. (Without the prelude, which would cost more than all the rest.)
--
-- KEYS[1] to KEYS[8] as in keys.lua
-- ARGV[1] group  ARGV[2] journal's MAXLEN  ARGV[3] consumer  ARGV[4] caller: a random ID of the process
-- ARGV[5] number of the call: a call that is sent again has its number, a later one a higher one
-- ARGV[6] '1' = delete the acknowledged entries (if the stream has one group only)  ARGV[7] number of entries
-- ARGV[8…] their IDs, then fields for the journal
--
-- Returns the number of entries if all are done, else 1 (done) or 0 (rejected: it was done, or made ready again) for each.
-- Raises NOGROUP, and OLDCALL if a later call was carried out. The call has no effect then.
-- Fence: none; XACK is the fence.

--- @keys

local consumer, n = ARGV[3], tonumber(ARGV[7])
local first = 8

local who, last, answer = string.match(redis.call('HGET', settings, 'settled:' .. consumer) or '', '^(%S+) (%d+) (.*)$')
if who == ARGV[4] and tonumber(ARGV[5]) <= tonumber(last) then
  return ARGV[5] == last and cmsgpack.unpack(answer) or redis.error_reply('OLDCALL a later call was carried out')
end
local deletes = source == retry or ARGV[6] == '1' and #redis.call('XINFO', 'GROUPS', stream) == 1

local results, rejected = {}, {}
for i = 1, n do
  local entry_id = ARGV[first - 1 + i]
  results[i] = redis.call('XACK', source, group, entry_id)
  if results[i] == 0 then
    if not rejected[1] then
      redis.call('XPENDING', source, group) -- raises NOGROUP: XACK answers 0 if the group is missing
    end
    rejected[#rejected + 1] = i - 1
  elseif deletes then
    redis.call('XDEL', source, entry_id)
  end
end

local told = { 'event', 'acked', 'group', group, 'consumer', consumer, 'entry', table.concat(ARGV, ',', first, first - 1 + n) }
if rejected[1] then
  told[9], told[10] = 'rejected', table.concat(rejected, ',')
  redis.call('HINCRBY', settings, 'rejected', #rejected)
end
if maxlen > 0 then
  for i = first + n, #ARGV do
    told[#told + 1] = ARGV[i]
  end
  redis.pcall('XADD', journal, 'MAXLEN', '~', maxlen, '*', unpack(told))
end
local reply = rejected[1] and results or n
redis.call('HSET', settings, 'settled:' .. consumer, ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. cmsgpack.pack(reply))
return reply
