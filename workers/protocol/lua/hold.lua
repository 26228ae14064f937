-- vanished -> pending for us: a live worker takes back the deliveries that it runs, after extend.lua reported that they vanished.
--
-- KEYS[1] to KEYS[8] as in keys.lua
-- ARGV[1] group  ARGV[2] journal's MAXLEN (not used)  ARGV[3] consumer  ARGV[4] caller
-- ARGV[5] number of the caller's last settlement that was answered ('0' = none)  ARGV[6…] entry ID, times delivered, in turns
--
-- Returns a result for each: 1 ours again, 0 not.
-- Fence: no effect if a settlement of the caller came in between, because acknowledged entries would be pending again.

--- @keys
--- @prelude

local consumer = ARGV[3]
local first = 6
local who, last = string.match(redis.call('HGET', settings, 'settled:' .. consumer) or '', '^(%S+) (%d+) ')
local is_settled_since = who == ARGV[4] and last ~= ARGV[5]
open_for_writing(source, group)
local reply = {}
for i = first, #ARGV, 2 do
  local row, is_there = pending_row(ARGV[i]), entry_of(ARGV[i]) ~= nil
  local may_take = not row and is_there and not is_settled_since
  if may_take then
    redis.call('XCLAIM', source, group, consumer, 0, ARGV[i], 'RETRYCOUNT', ARGV[i + 1], 'FORCE', 'JUSTID')
  end
  reply[#reply + 1] = (may_take or row and row[2] == consumer) and 1 or 0
end
return reply
