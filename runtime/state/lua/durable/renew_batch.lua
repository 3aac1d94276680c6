-- renew_batch.lua: keep the lease of a batch, or give it back with a ttl of 0.
-- KEYS[1] batches to run (zset, scored by when each may be taken)   KEYS[2] the batch (hash)
-- ARGV    id, fence, ttl_ms.   Returns the batch's status and the seconds that it has left; nothing if it is not held.
local status, fence, ends_at, expires_at =
  unpack(redis.call('HMGET', KEYS[2], 'status', 'fence', 'ends_at_ms', 'expires_at'))
if fence ~= ARGV[2] or not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return {} end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
if ARGV[3] == '0' then redis.call('HINCRBY', KEYS[2], 'fence', 1) end
return {status, math.ceil(((ends_at or expires_at * 1000) - now) / 1000)}
