-- ours -> offered to one replica for a moment, or free. A notice on the lease's channel wakes the waiting replicas.
--
-- KEYS[1] lease      {orders}:lease:billing   string
-- KEYS[2] settings   {orders}:group:billing   hash
-- KEYS[3] journal    {orders}:journal         stream
-- ARGV[1] group  ARGV[2] journal's MAXLEN  ARGV[3] holder  ARGV[4] replica that gets it ('' = any)
-- ARGV[5] ms for which it is offered  ARGV[6] reason
--
-- Returns 1, or 0 if the caller does not hold the lease.
-- Fence: the whole value is compared.

local lease, settings, journal, holder, to = KEYS[1], KEYS[2], KEYS[3], ARGV[3], ARGV[4]

if redis.call('GET', lease) ~= holder then
  return 0
end
redis.call('HDEL', settings, '') -- harmless, and a write: a replica can leave under maxmemory too
if to == '' then
  redis.call('DEL', lease)
else
  redis.call('SET', lease, 'offer:' .. to, 'PX', ARGV[5])
end
redis.pcall('PUBLISH', lease, to)
if ARGV[2] ~= '0' then
  redis.pcall('XADD', journal, 'NOMKSTREAM', 'MAXLEN', '~', ARGV[2], '*', 'event', 'lease_left', 'group', ARGV[1], 'holder', holder,
    'token', redis.call('HGET', settings, 'token') or '0', 'reason', ARGV[6])
end
return 1
