-- Counts the entries behind an ID in the server, so that their payloads need not travel.
--
-- KEYS[1] source  orders, or {orders}:retry:billing  stream
-- ARGV[1] the ID to count from, exclusive  ARGV[2] how many to count at most
-- ARGV[3] payload bytes to look at, after which the rest is left for the next call
--
-- Returns {counted, last ID counted, end of the stream reached (1|0), first ID counted ('' = none)}.
-- Fence: none, because it writes no key.

--- @prelude

local stream, last, most, budget = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local LARGEST_PAGE = 100

local function bytes_of(rows)
  local bytes = 0
  for _, row in ipairs(rows) do
    for _, part in ipairs(row[2]) do
      bytes = bytes + #part
    end
  end
  return bytes
end

local counted, bytes, page, first = 0, 0, 4, ''
while counted < most and bytes < budget do
  local asked = math.min(page, most - counted)
  local rows = entries_behind(stream, last, asked)
  if counted == 0 and #rows > 0 then
    first = rows[1][1]
  end
  if #rows > 0 then
    counted, last = counted + #rows, rows[#rows][1]
  end
  if #rows < asked then
    return { counted, last, 1, first }
  end
  bytes = bytes + bytes_of(rows)
  page = math.max(1, math.min(page * 2, LARGEST_PAGE, math.floor((budget - bytes) * counted / (bytes + 1))))
end
return { counted, last, 0, first }
