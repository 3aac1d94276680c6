-- refund_tenant.lua: undo the charge of a request that was not admitted in the end. Milliseconds.
-- KEYS    as shares.lua
-- ARGV    tenant, virtual tokens.
forget_idle()
local counter = tonumber(redis.call('ZSCORE', COUNTERS, ARGV[1]))
if counter then redis.call('ZADD', COUNTERS, exact(counter - math.min(ARGV[2], counter)), ARGV[1]) end
