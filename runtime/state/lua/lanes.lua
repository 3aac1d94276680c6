-- lanes.lua: precedes the scripts that use the queue, after tenants.lua: which of a tenant's waiting requests may take the
-- next free seat (scheduling/admission/shares.py says why).

local function lane_of(class, tenant)
  return tenant .. '\0' .. class .. ' '
end

-- Let the first place of a lane have its turn, if there is one.
local function put_next_turn(class, tenant)
  local lane = lane_of(class, tenant)
  local first = redis.call('ZRANGEBYLEX', LANES, '[' .. lane, '(' .. lane .. '~', 'LIMIT', 0, 1)[1]
  if not first then return end
  local held = redis.call('HGET', TENANTS, tenant) or 0
  redis.call('ZADD', TURNS, class * TURN_CLASS + held, string.sub(first, #lane + 1))
end

local function join_lane(key, score, is_firm)
  local class, tenant = math.floor(score / CLASS_SCORE), is_firm and '\1' or tenant_of(key)
  local lane, place = lane_of(class, tenant), string.format('%016.0f %s', score, key)
  redis.call('ZADD', LANES, 0, lane .. place)
  if is_firm then return end
  local first, second = unpack(redis.call('ZRANGEBYLEX', LANES, '[' .. lane, '(' .. lane .. '~', 'LIMIT', 0, 2))
  if first ~= lane .. place then return end
  if second then redis.call('ZREM', TURNS, string.sub(second, #lane + 1)) end
  redis.call('ZADD', TURNS, class * TURN_CLASS + (redis.call('HGET', TENANTS, tenant) or 0), place)
end

-- Take a place out of its lane. With `leaves_turn`, the caller puts the next turn.
local function leave_lane(key, score, is_firm, leaves_turn)
  local class, tenant = math.floor(score / CLASS_SCORE), is_firm and '\1' or tenant_of(key)
  local place = string.format('%016.0f %s', score, key)
  redis.call('ZREM', LANES, lane_of(class, tenant) .. place)
  if not is_firm and redis.call('ZREM', TURNS, place) == 1 and not leaves_turn then put_next_turn(class, tenant) end
end
