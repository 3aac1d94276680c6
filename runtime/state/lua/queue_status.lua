-- queue_status.lua: return how many requests wait, and the work of these and of the granted ones.
-- KEYS    as line.lua.   Returns {requests, prompt tokens}.
return_expired()
forget_abandoned()
local tokens = 0
for _, sum in ipairs(redis.call('HVALS', SUMS[1])) do tokens = tokens + sum end
for _, key in ipairs(redis.call('ZRANGE', GRANTS, 0, -1)) do
  tokens = tokens + read_entry(key).tokens
end
return {redis.call('ZCARD', QUEUE), tokens}
