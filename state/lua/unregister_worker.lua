-- unregister_worker.lua: remove an announcement, unless another process of that worker has replaced it.
-- KEYS[1] worker expiries (zset), KEYS[2] worker records (hash), KEYS[3] the worker's cached prefixes (set)
-- ARGV    worker_id, incarnation.
local record = redis.call('HGET', KEYS[2], ARGV[1])
if record and cjson.decode(record).incarnation == ARGV[2] then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
end
redis.call('UNLINK', KEYS[3]) -- large: UNLINK frees it in the background
