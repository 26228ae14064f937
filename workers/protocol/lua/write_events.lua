-- Writes lifecycle events that no transition writes: `delivered` and `started`, at journal level full.
--
-- KEYS[1] journal  {orders}:journal   stream
-- ARGV[1] journal's MAXLEN  ARGV[2…] per event: name, job ID, data (JSON)
--
-- Returns how many were written, or the error's text where the journal refuses them.
-- Fence: none; it only adds what is a fact already.

local ITEM = 3
for i = 2, #ARGV, ITEM do
  local reply = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*',
    'event', ARGV[i], 'job', ARGV[i + 1], 'data', ARGV[i + 2])
  if type(reply) == 'table' and reply.err then
    return reply.err
  end
end
return (#ARGV - 1) / ITEM
