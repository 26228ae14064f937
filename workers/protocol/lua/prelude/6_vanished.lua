local MARKER_CONSUMER = 'marked-by-reaper' -- holds nothing: the leader recognizes the group by it (keep_house.lua)
