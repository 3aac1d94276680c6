-- shares.lua: tenants' counters of virtual tokens (scheduling/admission/shares.py says why), put before the scripts that
-- touch them. Milliseconds. Counters are doubles, written so that they are read back as they were.
-- KEYS[1] counters of the active tenants (zset), KEYS[2] when each becomes idle (zset), KEYS[3] counters of idle
-- tenants that are ahead of the least active one (zset)
local COUNTERS, EXPIRIES, DEBTS = KEYS[1], KEYS[2], KEYS[3]

local function exact(number)
  return string.format('%.17g', number)
end

-- Who is idle keeps a lead and nothing else; with nobody active it is a lead over nobody.
local function forget_idle()
  for _, tenant in ipairs(redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', now)) do
    redis.call('ZADD', DEBTS, redis.call('ZSCORE', COUNTERS, tenant), tenant)
    redis.call('ZREM', COUNTERS, tenant)
    redis.call('ZREM', EXPIRIES, tenant)
  end
  redis.call('ZREMRANGEBYSCORE', DEBTS, '-inf', redis.call('ZRANGE', COUNTERS, 0, 0, 'WITHSCORES')[2] or '+inf')
  redis.call('ZREMRANGEBYRANK', DEBTS, 0, -MAX_DEBTS - 1)
end

-- The least counter among the others that are active; nil where there are none.
local function least_but(tenant)
  local found = redis.call('ZRANGE', COUNTERS, 0, 1, 'WITHSCORES')
  return tonumber(found[found[1] == tenant and 4 or 2])
end

local function greatest()
  return tonumber(redis.call('ZRANGE', COUNTERS, -1, -1, 'WITHSCORES')[2] or 0)
end
