-- lanes.lua: precedes the scripts that use the queue or tenants' seats: which of a tenant's waiting requests may take
-- the next free one (scheduling/admission/turns.py says why).
-- KEYS[7] seats (hash): from a request key to what its seats count, KEYS[8] when each request's seats expire (zset),
-- KEYS[9] the sums of seats (hash) by tenant, KEYS[10] lanes (zset, ordered by its members: tenant, class and place,
-- where a place is the score and the request key), KEYS[11] turns (zset): the first place of each lane, scored by class
-- and by what its tenant holds. The lanes of the tenant FIRM have the requests that take no turns.
-- A request key begins with its tenant, up to a slash.
local TENANTS, LANES, TURNS = KEYS[9], KEYS[10], KEYS[11]
local FIRM, TURN_CLASS = '\1', 2 ^ 40

local function tenant_of(key)
  return string.match(key, '^([^/]*)/') or ''
end

local function lane_of(class, tenant)
  return tenant .. '\0' .. class .. ' '
end

-- Return the first members of a lane, at most so many.
local function first_in(lane, most)
  return redis.call('ZRANGEBYLEX', LANES, '[' .. lane, '(' .. lane .. '~', 'LIMIT', 0, most)
end

local function put_turn(class, held, place)
  redis.call('ZADD', TURNS, class * TURN_CLASS + held, place)
end

-- Let the first place of a lane have its turn, if there is one.
local function put_next_turn(class, tenant)
  local lane = lane_of(class, tenant)
  local first = first_in(lane, 1)[1]
  if first then put_turn(class, redis.call('HGET', TENANTS, tenant) or 0, string.sub(first, #lane + 1)) end
end

-- Return class, tenant, lane and place of a request.
local function standing_of(key, score, is_firm)
  local class, tenant = math.floor(score / CLASS_SCORE), is_firm and FIRM or tenant_of(key)
  return class, tenant, lane_of(class, tenant), string.format('%016.0f %s', score, key)
end

local function join_lane(key, score, is_firm)
  local class, tenant, lane, place = standing_of(key, score, is_firm)
  redis.call('ZADD', LANES, 0, lane .. place)
  if is_firm then return end
  local first, second = unpack(first_in(lane, 2))
  if first ~= lane .. place then return end
  if second then redis.call('ZREM', TURNS, string.sub(second, #lane + 1)) end
  put_turn(class, redis.call('HGET', TENANTS, tenant) or 0, place)
end

-- Take a place out of its lane. With `leaves_turn`, the caller puts the next turn.
local function leave_lane(key, score, is_firm, leaves_turn)
  local class, tenant, lane, place = standing_of(key, score, is_firm)
  redis.call('ZREM', LANES, lane .. place)
  if not is_firm and redis.call('ZREM', TURNS, place) == 1 and not leaves_turn then put_next_turn(class, tenant) end
end
