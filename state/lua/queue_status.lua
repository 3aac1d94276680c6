-- queue_status.lua: how much waits.
-- KEYS[1] queue (zset), KEYS[2] entries (hash).   Returns {requests, prompt tokens}; granted ones count too.
local tokens = 0
for _, entry in ipairs(redis.call('HVALS', KEYS[2])) do
  tokens = tokens + tonumber(string.match(entry, '^%S+ (%d+)'))
end
return {redis.call('ZCARD', KEYS[1]), tokens}
