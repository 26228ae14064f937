-- A person, or a replica that has scanned, adds or removes watched groups outside the settings.
--
-- KEYS[1] watched  {reaper}:watched  hash: the pattern that found each group, '' if a person added it; field 'version' changes with any other
-- ARGV[1] '1' = a person does it  ARGV[2] how many groups to add  ARGV[3…] group and pattern of each, then the groups to remove
--
-- Returns how many groups were added or removed. A scan does not remove a group that a person has added.
-- Fence: none, because the changes do not depend on each other.

--- @prelude

local watched, by_person, added = KEYS[1], ARGV[1] == '1', tonumber(ARGV[2])
local last_added, changed = 2 + 2 * added, 0

redis.call('HDEL', watched, '') -- harmless, and a write: what follows then works under maxmemory

for i = 3, last_added, 2 do
  if by_person then
    changed = changed + (redis.call('HGET', watched, ARGV[i]) == '' and 0 or 1)
    redis.call('HSET', watched, ARGV[i], '')
  else
    changed = changed + redis.call('HSETNX', watched, ARGV[i], ARGV[i + 1])
  end
end
for i = last_added + 1, #ARGV do
  if by_person or redis.call('HGET', watched, ARGV[i]) ~= '' then
    changed = changed + redis.call('HDEL', watched, ARGV[i])
  end
end
if changed > 0 then -- a larger number than ever before, also if the server's clock was set back
  redis.call('HSET', watched, 'version', digits(math.max(at, whole_number(redis.call('HGET', watched, 'version'), 0) + 1)))
end
return changed
