-- keep_response.lua: keep one response of a tenant until its time is up, and forget what is over. Milliseconds.
-- KEYS[1] the tenant's responses (hash by id)    KEYS[2] when each of them is over (zset)
-- KEYS[3] bytes that each tenant holds (zset)    KEYS[4] when the last one of each tenant is over (zset)
-- KEYS[5] bytes that all tenants hold
-- ARGV    tenant, id, content, ttl_ms, takes. A content begins with its holder (32 bytes) and whether it is
--         final ('1'). What another holder keeps is replaced if it is not final and `takes` is 1.
-- Returns {1 if this content is kept or both are final, else 0; bytes that all tenants hold}.
local tenant, id = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local change = 0
-- The responses of a tenant without a living one have expired by themselves.
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now)) do
  change = change - (redis.call('ZSCORE', KEYS[3], gone) or 0)
  redis.call('ZREM', KEYS[3], gone)
  redis.call('ZREM', KEYS[4], gone)
end
local own = 0
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  own = own - redis.call('HSTRLEN', KEYS[1], gone)
  redis.call('HDEL', KEYS[1], gone)
  redis.call('ZREM', KEYS[2], gone)
end
local held, is_kept = redis.call('HGET', KEYS[1], id) or '', 1
if held == '' or held:sub(1, 32) == ARGV[3]:sub(1, 32) or (held:sub(33, 33) == '0' and ARGV[5] == '1') then
  own = own + #ARGV[3] - #held
  redis.call('HSET', KEYS[1], id, ARGV[3])
  redis.call('ZADD', KEYS[2], now + ARGV[4], id)
else
  is_kept = tonumber(ARGV[3]:sub(33, 33))
end
redis.call('ZINCRBY', KEYS[3], own, tenant)
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
redis.call('ZADD', KEYS[4], last, tenant)
local total = redis.call('INCRBY', KEYS[5], change + own)
redis.call('PEXPIREAT', KEYS[1], last)
redis.call('PEXPIREAT', KEYS[2], last)
local very_last = redis.call('ZRANGE', KEYS[4], -1, -1, 'WITHSCORES')[2]
for place = 3, 5 do redis.call('PEXPIREAT', KEYS[place], very_last) end
return {is_kept, total}
