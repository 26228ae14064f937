-- no term -> term, where nobody is elected: takes the next fencing token.
--
-- KEYS[1] token  {reaper}:token  counter
-- ARGV[1] the token to get past: one that was found in a fence, or 0
--
-- Returns {token, server time in ms}.
-- Fence: none; the counter only grows.

--- @prelude

-- Changes nothing (a counter has no expiry), and is a write: what follows then works under maxmemory.
redis.call('PERSIST', KEYS[1])
local last = math.max(tonumber(redis.call('GET', KEYS[1]) or '') or 0, tonumber(ARGV[1]))
redis.call('SET', KEYS[1], string.format('%d', last + 1))
return { last + 1, now_ms() }
