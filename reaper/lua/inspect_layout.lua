-- Reads whether a policy can work with a stream's layout, for observers.
--
-- KEYS[1] stream  orders  stream
-- ARGV[1] policy
--
-- Returns '' if it can, or the reason: several_groups | explicit_ids.
-- Fence: none, because it writes no key.

local stream = KEYS[1]

--- @prelude

return unsupported_layout(ARGV[1]) or ''
