-- Searches one job among the members of a schedule in the server, because members hold whole payloads.
--
-- KEYS[1] schedule  {orders}:scheduled:billing or {orders}:scheduled  sorted set
-- ARGV[1] job ID, or the entry ID the job had  ARGV[2] rank to start at  ARGV[3] members to look at in this call
--
-- Returns {next rank (-1 = all were looked at)}, or {-1, score, job ID, deliveries, generation, first ms, entry
-- ID} if it was found.
-- Fence: none, because it writes no key.

--- @prelude

local wanted, from, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local rows = redis.call('ZRANGE', KEYS[1], from, from + most - 1, 'WITHSCORES')
for i = 1, #rows, 2 do
  if string.find(rows[i], wanted, 1, true) then -- most members are told apart without unpacking them
    local job = unpacked(rows[i])
    if job and (job.id == wanted or job.entry == wanted) then
      return {
        -1, rows[i + 1], job.id, digits(job.deliveries), job.generation, job.first_ms, job.entry,
      }
    end
  end
end
return { #rows / 2 < most and -1 or from + most }
