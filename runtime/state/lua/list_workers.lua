-- list_workers.lua: return the announcements of workers; remove expired ones. Times in milliseconds.
-- KEYS[1] worker expiries (zset), KEYS[2] worker records (hash).   Returns records as JSON.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
end
return redis.call('HVALS', KEYS[2])
