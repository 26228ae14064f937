-- Reads only: counts the entries behind an ID, in the server, because their payloads would have to travel otherwise.
--
-- KEYS[1] stream  orders  stream
-- ARGV[1] the ID to count from, exclusive  ARGV[2] how many to count at most  ARGV[3] CPU seconds to spend at most
--
-- Returns {counted, last ID counted, end of the stream reached (1|0), first ID counted ('' = none)}.
-- Fence: none; it writes nothing.

local stream, last, most, budget = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local LARGEST_PAGE = 100

local started, counted, page, first = os.clock(), 0, 4, ''
while counted < most do
  local rows = redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', math.min(page, most - counted))
  if #rows == 0 then
    return { counted, last, 1, first }
  end
  if first == '' then
    first = rows[1][1]
  end
  counted, last = counted + #rows, rows[#rows][1]
  if os.clock() - started > budget then
    break
  end
  page = math.min(page * 2, LARGEST_PAGE)
end
return { counted, last, 0, first }
