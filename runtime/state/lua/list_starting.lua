-- list_starting.lua: return the announcements of starting workers; remove expired ones.
-- Times in milliseconds.
-- KEYS[1] announcements' expiries (zset), KEYS[2] their records (hash).
-- Returns records as JSON, each followed by the time until it expires.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
end
local found = {}
local ids = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #ids, 2 do
  found[#found + 1] = redis.call('HGET', KEYS[2], ids[i])
  found[#found + 1] = math.floor(ids[i + 1] - now)
end
return found
