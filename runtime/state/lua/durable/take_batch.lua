-- take_batch.lua: take the lease of a batch that nobody holds. The fence orders its holders.
-- KEYS[1] batches to run (zset, scored by when each may be taken)   KEYS[2] the batch (hash)
-- ARGV    id, ttl_ms.   Returns the fence, or 0 if it is held. A lease that ends later than any could is not one:
-- Redis has lost its clock.
local free_at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not free_at then return 0 end
if tonumber(free_at) > now and tonumber(free_at) < now + 2 * ARGV[2] then return 0 end
local status = redis.call('HGET', KEYS[2], 'status')
if not status then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return 0
end
if status == 'validating' then redis.call('HSET', KEYS[2], 'status', 'in_progress', 'in_progress_at', wall) end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
return redis.call('HINCRBY', KEYS[2], 'fence', 1)
