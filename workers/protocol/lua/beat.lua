-- Notes that the server could serve a heartbeat now. Each replica calls it for each group, and each worker's heartbeat does the same
-- (extend.lua), so that an idle group has a beat as well.
--
-- KEYS[1] stream    orders                  stream
-- KEYS[2] settings  {orders}:group:billing  hash
-- KEYS[3] journal   {orders}:journal        stream, named only
-- KEYS[4] retry     {orders}:retry:billing  stream, named only: while a slot of a cluster moves, Redis serves a call whose keys are all
--         there, and rejects one that names a missing key. So every call that notes a beat names all keys of all heartbeats.
-- ARGV[1] group
--
-- Returns {server time in ms, for how many ms recovery has to wait, length of the last gap in ms}. Raises NOGROUP where the group is gone,
-- and whatever error Redis answers to a command that a heartbeat needs: then no beat is noted.
-- Fence: none; a beat is a fact, whoever notes it.

--- @prelude
--- @heartbeat

local stream, settings, group = KEYS[1], KEYS[2], ARGV[1]

open_for_writing(stream, group)
probe_heartbeat(stream, group)
local at, beat = note_beat(settings)
return { at, recovery_waits_ms(beat, at, 0), beat.gap }
