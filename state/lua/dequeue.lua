-- dequeue.lua: take a request out of the queue, granted or not.
-- KEYS[1] queue (zset), KEYS[2] entries (hash), KEYS[3] grants (zset)
-- ARGV    request_key.   Returns 1 when it was there, else 0.
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
return redis.call('HDEL', KEYS[2], ARGV[1])
