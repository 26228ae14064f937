-- The leader journals what a full scan found. Nothing else changes.
--
-- KEYS[1] fence    {orders}:fence:billing  string
-- KEYS[2] journal  {orders}:journal        stream
-- ARGV[1] fence of the caller: namespace:token:holder  ARGV[2] journal's MAXLEN  ARGV[3] the event's data (JSON)
--
-- Returns {'ok'}, or {'stale', fence found}: nothing was written. A journal that is broken or full is no error.
-- Fence: the whole value is compared; a missing fence is stale too.

--- @prelude

local fence, journal = KEYS[1], KEYS[2]
local found = redis.call('GET', fence) or ''
if found ~= ARGV[1] then
  return { 'stale', found }
end
journal_event(journal, ARGV[2], 'scanned', '', ARGV[3])
return { 'ok' }
