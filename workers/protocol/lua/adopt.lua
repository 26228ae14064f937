-- A worker finds its own deliveries whose read had no answer, or makes the deliveries of an earlier process overdue.
--
-- KEYS[1] to KEYS[8] as in keys.lua
-- ARGV[1] group  ARGV[2] journal's MAXLEN (not used)  ARGV[3] consumer  ARGV[4] most entries  ARGV[5] where the page begins ('-' or '(ID')
-- ARGV[6…] IDs of entries in hand
--
-- Returns {next page ('' = the end), {ID, fields, times delivered}…}: deliveries of a read whose reply was lost.
-- With ARGV[4] '0', a later process of the name reports that the consumer's process is dead. All its deliveries are made overdue, so that
-- they are recovered. If that process lives, its next heartbeat extends them again.
-- Fence: none; no delivery changes its owner.

--- @keys
--- @prelude

local consumer, most, in_hand = ARGV[3], tonumber(ARGV[4]), {}
local first, PAGE = 6, 100
local in_force = read_settings()
if not in_force then
  return redis.error_reply(NO_SETTINGS)
end
for i = first, #ARGV do
  in_hand[ARGV[i]] = true
end
open_for_writing(source, group)
local found, next_page = {}, ''
for i, row in ipairs(redis.call('XPENDING', source, group, ARGV[5], '+', PAGE, consumer)) do
  if i == PAGE then
    next_page = behind(row[1])
  end
  local entry = not in_hand[row[1]] and not is_given_back(row) and entry_of(row[1])
  if entry and most == 0 then
    redis.call('XCLAIM', source, group, consumer, 0, row[1], 'IDLE', digits(math.max(row[3], in_force.visibility_ms)), 'RETRYCOUNT', row[4], 'JUSTID')
  elseif entry then
    redis.call('XCLAIM', source, group, consumer, 0, row[1], 'JUSTID')
    entry[3], found[#found + 1] = row[4], entry
    if #found == most then
      next_page = behind(row[1])
      break
    end
  end
end
return { next_page, found }
