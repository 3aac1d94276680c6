-- drop_responses.lua: drop one response of a tenant; or those that are over first, until all tenants hold no more than
-- allowed.
-- KEYS    as keep_response.lua
-- ARGV    tenant, id or '', bytes allowed, the only holder whose response is dropped or ''.
-- Returns {responses dropped, bytes that all tenants hold}.
local tenant, allowed = ARGV[1], tonumber(ARGV[3])
local total = tonumber(redis.call('GET', KEYS[5]) or 0)
local dropped = 0
local function drop(id)
  local bytes = redis.call('HSTRLEN', KEYS[1], id)
  redis.call('ZREM', KEYS[2], id)
  if bytes == 0 then return end
  redis.call('HDEL', KEYS[1], id)
  redis.call('ZINCRBY', KEYS[3], -bytes, tenant)
  total = redis.call('DECRBY', KEYS[5], bytes)
  dropped = dropped + 1
end
if ARGV[2] ~= '' then
  local holder = (redis.call('HGET', KEYS[1], ARGV[2]) or ''):sub(1, 32)
  if ARGV[4] == '' or holder == ARGV[4] then drop(ARGV[2]) end
else
  while total > allowed do
    local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    if not oldest then break end
    drop(oldest)
  end
end
if redis.call('ZCARD', KEYS[2]) == 0 then
  -- Nothing is left, whatever was counted: the tenant's keys may have expired.
  total = redis.call('DECRBY', KEYS[5], redis.call('ZSCORE', KEYS[3], tenant) or 0)
  redis.call('ZREM', KEYS[3], tenant)
  redis.call('ZREM', KEYS[4], tenant)
end
return {dropped, total}
