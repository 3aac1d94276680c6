-- charge_tenant.lua: charge a request to its tenant, once, unless that is over its share of the fleet.
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
local has_paid = charged()
local over = not has_paid and least and counter - least > tonumber(ARGV[3])
if not over and not has_paid then
  counter = counter + ARGV[2]
  -- The key outlives the charge, since its own time is that of Redis's clock with all its jumps.
  if CHARGE then redis.call('SET', CHARGE, ARGV[2] .. ' ' .. now + CHARGED_MS, 'PX', 2 * CHARGED_MS) end
end
redis.call('ZADD', COUNTERS, exact(counter), tenant)
redis.call('ZADD', EXPIRIES, now + ACTIVE_MS, tenant)
-- All keys expire once every tenant is idle: see forget_idle.
for place = 1, 3 do redis.call('PEXPIRE', KEYS[place], ACTIVE_MS) end
return {exact(counter), least and exact(least) or '', redis.call('ZCARD', COUNTERS) - 1, over and 1 or 0}
