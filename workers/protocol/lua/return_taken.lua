-- pending for us -> pending for whoever had it: a read with CLAIM has taken it from somebody who lives.
--
-- To the server whatever was handed out in the future is idle for longer than anything: after a step back of its clock, be it by
-- a millisecond, a read with CLAIM takes what others have in hand, however idle it asks them to be. Its reply tells (an idle time
-- below 0), but not whose it was. No two deliveries of an entry have the same count. So it is given the count that it had, under a
-- consumer of ours, and whoever extends or settles it with that count is the one who had it, and has it again (has_vanished in
-- prelude). Where nobody does, it falls due as any delivery. What waited in the schedule waits again.
--
-- KEYS[1] source    orders, or {orders}:retry:billing   stream
-- KEYS[2] stream    orders                              stream
-- KEYS[3] schedule  {orders}:scheduled:billing          sorted set
-- ARGV[1] group  ARGV[2] our consumer  ARGV[3…] per item: entry ID, how often it was delivered before we got it
--
-- Returns how many were given back. What is not ours any more, or whose payload is gone, is left as it is.
-- Raises NOGROUP where the group is gone.
-- Fence: the entry is pending for this consumer, delivered once more than the caller says.

--- @prelude

local source, stream, schedule = KEYS[1], KEYS[2], KEYS[3]
local group, consumer = ARGV[1], ARGV[2]
local first = 3

open_for_writing(source, group)
local n = 0
for i = first, #ARGV, 2 do
  local entry_id, times = ARGV[i], tonumber(ARGV[i + 1])
  local row = redis.call('XPENDING', source, group, entry_id, entry_id, 1, consumer)[1]
  if row and row[4] == times + 1 and #redis.call('XRANGE', source, entry_id, entry_id) > 0 then
    give_back_taken(source, stream, group, schedule, entry_id, times)
    n = n + 1
  end
end
return n
