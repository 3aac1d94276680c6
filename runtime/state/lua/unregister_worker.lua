-- unregister_worker.lua: remove an announcement, unless another process of that worker has replaced it.
-- KEYS[1] worker expiries (zset), KEYS[2] worker records (hash), KEYS[3..] its prefixes by tier (sets)
-- ARGV    worker_id, incarnation.
local record = redis.call('HGET', KEYS[2], ARGV[1])
if record and cjson.decode(record).incarnation == ARGV[2] then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
end
for place = 3, #KEYS do
  redis.call('UNLINK', KEYS[place]) -- large: UNLINK frees it in the background
end
