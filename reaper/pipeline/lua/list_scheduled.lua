-- reads only: the jobs that wait in a schedule, a page at a time.
--
-- KEYS[1] schedule  {orders}:scheduled:billing  sorted set
-- ARGV[1] cursor ('0' = the beginning)  ARGV[2] members to look at, about
--
-- Returns {next cursor ('0' = done), job ID…}. What stays in the schedule is told at least once. Members that are no jobs
-- are left out.
-- Fence: none; nothing is written.

--- @prelude

local page = redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local reply = { page[1] }
for i = 1, #page[2], 2 do
  local job = unpack_job(page[2][i])
  if job and type(job.job_id) == 'string' then
    reply[#reply + 1] = job.job_id
  end
end
return reply
