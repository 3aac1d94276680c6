-- seats.lua: precedes the scripts that change the seats which tenants hold (grant, settle,
-- lease_at_once, release_lease, take_holds), after tenants.lua. Milliseconds.
local SEATS, SEAT_EXPIRIES = KEYS[7], KEYS[8]

-- Change what a tenant holds. If requests wait, give each of its lanes (lanes.lua) the turn that follows from it.
local function add_seats(tenant, share, nobody_waits)
  local held = redis.call('HINCRBY', TENANTS, tenant, share)
  if held == 0 then redis.call('HDEL', TENANTS, tenant) end
  if nobody_waits then return end
  local from, to, class = '[' .. tenant .. '\0', '(' .. tenant .. '\1', 0
  while class <= LAST_CLASS do
    local first = redis.call('ZRANGEBYLEX', LANES, from .. class, to, 'LIMIT', 0, 1)[1]
    if not first then return end
    class = tonumber(string.sub(first, #tenant + 2, #tenant + 2))
    redis.call('ZADD', TURNS, class * TURN_CLASS + held, string.sub(first, #tenant + 4))
    class = class + 1
  end
end

local function leave_seats(key, nobody_waits)
  local share = redis.call('HGET', SEATS, key)
  if not share then return end
  redis.call('HDEL', SEATS, key)
  redis.call('ZREM', SEAT_EXPIRIES, key)
  add_seats(tenant_of(key), 0 - share, nobody_waits)
end

-- Return whether this has changed what the tenant holds.
local function take_seats(key, share, expiry)
  local is_new = redis.call('ZADD', SEAT_EXPIRIES, 'GT', expiry, key) == 1
  local change = share - (not is_new and redis.call('HGET', SEATS, key) or 0)
  if change == 0 then return false end
  redis.call('HSET', SEATS, key, share)
  add_seats(tenant_of(key), change)
  return true
end
