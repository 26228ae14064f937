-- A replica registers what it is doing.
--
-- KEYS[1] replicas  {reaper}:replicas  hash
-- ARGV[1] replica ID  ARGV[2] heartbeat (JSON)
--
-- Returns 1.
-- Fence: none; a replica writes its own field only.

redis.call('HDEL', KEYS[1], '') -- harmless, and a write: under maxmemory replicas stay visible
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
