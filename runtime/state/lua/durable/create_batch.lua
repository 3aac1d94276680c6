-- create_batch.lua: enter a batch, which any gateway may take from now on, or a failed one.
-- KEYS[1] the batch (hash)   KEYS[2] the tenant's batches (zset)   KEYS[3] batches to run (zset)
-- KEYS[4] its input (hash)   KEYS[5] when what expires (zset)
-- ARGV    id, seconds to complete it, ms until a failed one is forgotten, status, fields of the batch ....
-- Returns 1, or 0 if there is no such input.
if redis.call('EXISTS', KEYS[1]) == 1 then return 1 end
if redis.call('HGET', KEYS[4], 'is_ready') ~= '1' then return 0 end
redis.call('HSET', KEYS[1], 'status', ARGV[4], 'created_at', wall, 'expires_at', wall + ARGV[2],
  'ends_at_ms', now + ARGV[2] * 1000, 'completed', 0, 'failed', 0, 'fence', 0, unpack(ARGV, 5))
redis.call('ZADD', KEYS[2], 0, ARGV[1])
if ARGV[4] == 'failed' then
  redis.call('HSET', KEYS[1], 'failed_at', wall)
  redis.call('ZADD', KEYS[5], now + ARGV[3], ARGV[1])
else
  redis.call('HINCRBY', KEYS[4], 'uses', 1)
  redis.call('ZADD', KEYS[3], now, ARGV[1])
end
return 1
