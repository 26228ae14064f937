-- Tells whether a policy can work with a stream's layout. Writes nothing: for observers.
--
-- KEYS[1] stream  orders  stream
-- ARGV[1] policy
--
-- Returns why not: '' | several_groups | explicit_ids.
-- Fence: none; nothing is written.

local stream = KEYS[1]

--- @prelude

return layout_refusal(ARGV[1]) or ''
