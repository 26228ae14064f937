-- A worker gives back entries that a read with CLAIM has taken from a live worker. After the server's clock was set back, their delivery
-- times lie in the future, and the server takes them for the oldest. A consumer of ours has them until the next heartbeat of their worker.
--
-- KEYS[1] source  orders, or {orders}:retry:billing  stream that the read was of
-- ARGV[1] group  ARGV[2] consumer that has read  ARGV[3…] entry ID and delivery count before the read, in turns
--
-- Returns 1. Raises NOGROUP.
-- Fence: the entry is pending for this consumer, delivered once more than before.

local source, group, consumer = KEYS[1], ARGV[1], ARGV[2]

redis.call('XACK', source, group, '0-0') -- without effect, and a write, after which the other writes work under maxmemory
for i = 3, #ARGV, 2 do
  local row = redis.call('XPENDING', source, group, ARGV[i], ARGV[i], 1)[1]
  if row and row[2] == consumer and row[4] == tonumber(ARGV[i + 1]) + 1 then
    redis.call('XCLAIM', source, group, 'returned-by-reaper', 0, ARGV[i], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
  end
end
return 1
