-- refund_tenant.lua: undo the charge of a request that was not admitted in the end, once. Milliseconds.
-- KEYS    as shares.lua
-- ARGV    tenant, virtual tokens. What a request with a name was charged is known here, and counts instead.
forget_idle()
local counter = tonumber(redis.call('ZSCORE', COUNTERS, ARGV[1]))
local tokens = ARGV[2]
if CHARGE then
  tokens = charged() or 0
  redis.call('DEL', CHARGE)
end
if counter then redis.call('ZADD', COUNTERS, exact(counter - math.min(tokens, counter)), ARGV[1]) end
