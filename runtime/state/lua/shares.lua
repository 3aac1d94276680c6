-- shares.lua: precedes the scripts that use tenants' counters of virtual tokens (scheduling/admission/shares.py says
-- why). Milliseconds. Counters are doubles, printed so that they are read back exactly.
-- KEYS[1] counters of the active tenants (zset), KEYS[2] when each becomes idle (zset), KEYS[3] counters of idle
-- tenants that are ahead of the least active one (zset), KEYS[4] the charge of a request, if it has a name:
-- `tokens over_at` (string)
local COUNTERS, EXPIRIES, DEBTS, CHARGE = unpack(KEYS)

local function exact(number)
  return string.format('%.17g', number)
end

-- Of an idle tenant keep only its lead over the least active one; without an active one there is no lead.
local function forget_idle()
  for _, tenant in ipairs(redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', now)) do
    redis.call('ZADD', DEBTS, redis.call('ZSCORE', COUNTERS, tenant), tenant)
    redis.call('ZREM', COUNTERS, tenant)
    redis.call('ZREM', EXPIRIES, tenant)
  end
  redis.call('ZREMRANGEBYSCORE', DEBTS, '-inf', redis.call('ZRANGE', COUNTERS, 0, 0, 'WITHSCORES')[2] or '+inf')
  redis.call('ZREMRANGEBYRANK', DEBTS, 0, -MAX_DEBTS - 1)
end

-- Return the least counter of the other active tenants, or nil.
local function least_but(tenant)
  local found = redis.call('ZRANGE', COUNTERS, 0, 1, 'WITHSCORES')
  return tonumber(found[found[1] == tenant and 4 or 2])
end

-- Return what the request was charged before, at any router, or nil.
local function charged()
  local tokens, over_at = (CHARGE and redis.call('GET', CHARGE) or ''):match('^(%S+) (%d+)$')
  return tokens and tonumber(over_at) > now and tonumber(tokens) or nil
end

local function greatest()
  return tonumber(redis.call('ZRANGE', COUNTERS, -1, -1, 'WITHSCORES')[2] or 0)
end
