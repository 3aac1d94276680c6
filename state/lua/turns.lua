-- turns.lua: precedes the scripts that use the queue or leases: the seats that tenants hold, and which of their waiting
-- requests may take the next free one (scheduling/admission/turns.py says why). Milliseconds.
-- KEYS[7] seats (hash): from a request key to what its seats count, KEYS[8] when each request's seats expire (zset),
-- KEYS[9] the sums of seats (hash) by tenant, KEYS[10] lanes (zset, ordered by its members `class tenant place`, where a
-- place is the score and the request key), KEYS[11] turns (zset): the first place of each lane, scored by class and by
-- what its tenant holds. The lane of the tenant '!' has the requests that take no turns.
-- A request key begins with its tenant, up to a slash.
local SEATS, SEAT_EXPIRIES, TENANTS, LANES, TURNS = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local FIRM, TURN_CLASS, LAST_CLASS = '!', 2 ^ 40, 3

local function tenant_of(key)
  return string.match(key, '^([^/]*)/') or ''
end

local function lane_of(class, tenant)
  return string.format('%d %s ', class, tenant)
end

-- Return the first place of a lane, or nil.
local function first_of(lane)
  local found = redis.call('ZRANGEBYLEX', LANES, '[' .. lane, '(' .. lane .. '~', 'LIMIT', 0, 1)[1]
  return found and string.sub(found, #lane + 1)
end

local function turn_of(class, tenant)
  return string.format('%.0f', class * TURN_CLASS + (redis.call('HGET', TENANTS, tenant) or 0))
end

-- Add a place to its lane (ZADD) or remove it (ZREM); the turns have the first place of each lane.
local function change_lane(add_or_remove, key, score, is_firm)
  local class, tenant = math.floor(score / CLASS_SCORE), is_firm and FIRM or tenant_of(key)
  local lane, place = lane_of(class, tenant), string.format('%016.0f %s', score, key)
  local before = first_of(lane)
  if add_or_remove == 'ZADD' then
    redis.call('ZADD', LANES, 0, lane .. place)
  else
    redis.call('ZREM', LANES, lane .. place)
  end
  local first = first_of(lane)
  if is_firm or first == before then return end
  if before then redis.call('ZREM', TURNS, before) end
  if first then redis.call('ZADD', TURNS, turn_of(class, tenant), first) end
end

local function add_seats(tenant, share)
  if redis.call('HINCRBY', TENANTS, tenant, share) == 0 then redis.call('HDEL', TENANTS, tenant) end
  if redis.call('EXISTS', TURNS) == 0 then return end
  for class = 0, LAST_CLASS do
    local first = first_of(lane_of(class, tenant))
    if first then redis.call('ZADD', TURNS, turn_of(class, tenant), first) end
  end
end

local function leave_seats(key)
  local share = redis.call('HGET', SEATS, key)
  if not share then return end
  redis.call('HDEL', SEATS, key)
  redis.call('ZREM', SEAT_EXPIRIES, key)
  add_seats(tenant_of(key), 0 - share)
end

local function keep_seats(key, expiry)
  local own = redis.call('ZSCORE', SEAT_EXPIRIES, key)
  if own then redis.call('ZADD', SEAT_EXPIRIES, math.max(own, expiry), key) end
end

local function take_seats(key, share, expiry)
  local change = share - (redis.call('HGET', SEATS, key) or 0)
  redis.call('HSET', SEATS, key, share)
  redis.call('ZADD', SEAT_EXPIRIES, math.max(redis.call('ZSCORE', SEAT_EXPIRIES, key) or 0, expiry), key)
  if change ~= 0 then add_seats(tenant_of(key), change) end
end

local function leave_expired_seats()
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', SEAT_EXPIRIES, '-inf', now)) do leave_seats(key) end
end
