-- What is given back where it is (policy `in-place`) stays pending under a consumer of ours. `READY_CONSUMER` holds what is ready:
-- idle for so long that every reader with CLAIM takes it. `WAITING_CONSUMER` holds what stands in the schedule, by a member that
-- names the entry alone; the leader's looks keep it young (recovery), so that it is claimable by itself where none lives.
-- `RETURNED_CONSUMER` holds what a reader has taken by mistake, until whoever had it shows that (return_taken.lua). What of it stands
-- in the schedule waits there: readers that are not ours do not know whose it was.
local READY_CONSUMER, WAITING_CONSUMER, RETURNED_CONSUMER = 'ready-by-reaper', 'waiting-by-reaper', 'returned-by-reaper'
-- Such an entry's member of the schedule; which entry, of what (`stream` | `retry`), a member names, if it does.
local function member_of(source, stream, entry_id)
  return (source == stream and 'stream ' or 'retry ') .. entry_id
end

local function entry_named(member)
  local kind, entry_id = string.match(member, '^(%a+) (%d+%-%d+)$')
  if kind == 'stream' or kind == 'retry' then
    return kind, entry_id
  end
end
