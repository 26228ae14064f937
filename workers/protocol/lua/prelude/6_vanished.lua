-- Holds what a leader puts back into a group that somebody destroyed.
local RESTORED_CONSUMER = 'restored-by-reaper'
