-- vanished -> pending for us: a live worker takes back what it runs, after somebody deleted its consumer, or the group.
--
-- A call of its own, after extend_visibility.lua has said that they vanished: the worker looks first whether it has settled them
-- meanwhile, and settles none while this call is under way. Else what it has just acknowledged would be pending again.
--
-- KEYS[1] source     orders, or {orders}:retry:billing   stream
-- KEYS[2] stream     orders                              stream
-- KEYS[3] agreement  {orders}:group:billing              hash
-- ARGV[1] group  ARGV[2] our consumer  ARGV[3…] per item: entry ID, its delivery count, and behind commas when
-- it was proven alive last and until when that counts (server's ms; may be left out: what is told apart by the first alone is refused then)
--
-- Returns one number an item: 1 ours (again, or still), 0 not ours any more.
-- Raises NOGROUP where the group is gone.
-- Fence: none; nothing is taken from anybody but the leader that has put it back for whoever comes.

--- @prelude

local source, stream, agreement = KEYS[1], KEYS[2], KEYS[3]
local group, consumer = ARGV[1], ARGV[2]
local first = 3

open_for_writing(source, group)
local results = {}
for i = first, #ARGV, 2 do
  local entry_id, result = ARGV[i], 0
  local times, proven = read_count(ARGV[i + 1])
  local row = redis.call('XPENDING', source, group, entry_id, entry_id, 1)[1]
  if row and row[2] == consumer then
    result = row[4] == times and 1 or 0
  elseif has_vanished(source, stream, group, agreement, consumer, entry_id, times, proven) then
    hold_again(source, group, consumer, entry_id, times)
    result = 1
  end
  results[#results + 1] = result
end
return results
