-- charge_tenant.lua: charge a request to its tenant, unless that is over its share of the fleet.
-- KEYS    as shares.lua
-- ARGV    tenant, virtual tokens, allowed lead and band in virtual tokens ('inf' for none).
-- Returns {counter, least counter of the others or '', number of other active tenants, 1 if over its share, else 0}.
forget_idle()
local tenant, least = ARGV[1], least_but(ARGV[1])
local counter = tonumber(redis.call('ZSCORE', COUNTERS, tenant))
if not counter then
  counter = math.max(redis.call('ZSCORE', DEBTS, tenant) or 0, least or 0)
  redis.call('ZREM', DEBTS, tenant)
end
local floor = greatest() - ARGV[4]
counter, least = math.max(counter, floor), least and math.max(least, floor)
local over = least and counter - least > tonumber(ARGV[3])
if not over then counter = counter + ARGV[2] end
redis.call('ZADD', COUNTERS, exact(counter), tenant)
redis.call('ZADD', EXPIRIES, now + ACTIVE_MS, tenant)
-- All keys expire once every tenant is idle: see forget_idle.
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ACTIVE_MS) end
return {exact(counter), least and exact(least) or '', redis.call('ZCARD', COUNTERS) - 1, over and 1 or 0}
