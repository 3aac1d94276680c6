-- seats.lua: precedes the scripts that change the seats which tenants hold, after lanes.lua. Milliseconds.
local SEATS, SEAT_EXPIRIES, LAST_CLASS = KEYS[7], KEYS[8], 3

-- Change what a tenant holds, and put the turns of its lanes.
local function add_seats(tenant, share)
  local held = redis.call('HINCRBY', TENANTS, tenant, share)
  if held == 0 then redis.call('HDEL', TENANTS, tenant) end
  local from, to = tenant .. '\0', '(' .. tenant .. '\1'
  while true do
    local first = redis.call('ZRANGEBYLEX', LANES, '[' .. from, to, 'LIMIT', 0, 1)[1]
    if not first then return end
    local class = tonumber(string.sub(first, #tenant + 2, #tenant + 2))
    put_turn(class, held, string.sub(first, #tenant + 4))
    if class == LAST_CLASS then return end
    from = lane_of(class + 1, tenant)
  end
end

local function leave_seats(key)
  local share = redis.call('HGET', SEATS, key)
  if not share then return end
  redis.call('HDEL', SEATS, key)
  redis.call('ZREM', SEAT_EXPIRIES, key)
  add_seats(tenant_of(key), 0 - share)
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
