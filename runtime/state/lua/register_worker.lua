-- register_worker.lua: announce a worker, or renew its announcement. Times in milliseconds.
-- KEYS[1] worker expiries (zset), KEYS[2] worker records (hash), KEYS[3..] its prefixes by tier (sets)
-- ARGV    worker_id, record as JSON, ttl_ms.
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
for place = 3, #KEYS do
  redis.call('PEXPIRE', KEYS[place], ARGV[3] * 10)
end
