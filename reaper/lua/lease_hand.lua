-- ours -> offered to one replica for a moment, or free. The notice on the lease's channel wakes those who wait for it.
--
-- KEYS[1] lease      {orders}:lease:billing   string
-- KEYS[2] agreement  {orders}:group:billing   hash
-- KEYS[3] journal    {orders}:journal         stream
-- ARGV[1] holder  ARGV[2] to which replica ('' = to any)  ARGV[3] for how long it is offered, in ms  ARGV[4] group  ARGV[5] why
-- ARGV[6] journal: '1' = write events  ARGV[7] journal's MAXLEN
--
-- Returns 1, or 0: not ours.
-- Fence: the whole value is compared.

local lease, agreement, journal, holder, to = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]

if redis.call('GET', lease) ~= holder then
  return 0
end
redis.call('HDEL', agreement, '') -- harmless, and a write: a replica can leave under maxmemory too
if to == '' then
  redis.call('DEL', lease)
else
  redis.call('SET', lease, 'offer:' .. to, 'PX', ARGV[3])
end
redis.pcall('PUBLISH', lease, to)
if ARGV[6] == '1' then
  redis.pcall('XADD', journal, 'NOMKSTREAM', 'MAXLEN', '~', ARGV[7], '*', 'event', 'lease_left', 'group', ARGV[4], 'holder', holder,
    'token', redis.call('HGET', agreement, 'token') or '0', 'reason', ARGV[5])
end
return 1
