-- take_budget.lua: take from all of a tenant's buckets, or from none.
-- KEYS    as budget.lua
-- ARGV    rate per second, burst and cost of requests, then of tokens; an empty rate means no limit.
-- Returns {milliseconds to wait, or 0 if it was taken; now; what is left of requests; of tokens}.
local wait, full_in, left = 0, 0, {}
for bucket, field in ipairs({'requests', 'tokens'}) do
  local per_s, burst, cost = ARGV[3 * bucket - 2], ARGV[3 * bucket - 1], tonumber(ARGV[3 * bucket])
  left[bucket] = 0
  if per_s ~= '' then
    per_s, burst = tonumber(per_s), tonumber(burst)
    local level = filled(field, per_s, burst)
    local missing = math.min(cost, burst) - level
    if missing > 0 then wait = math.max(wait, math.ceil(missing * 1000 / per_s)) end
    left[bucket] = level - cost
    full_in = math.max(full_in, math.ceil((burst - left[bucket]) * 1000 / per_s))
  end
end
if wait == 0 then
  redis.call('HSET', KEYS[1], 'requests', exact_number(left[1]), 'tokens', exact_number(left[2]), 'at', now)
  -- Full buckets need no record.
  redis.call('PEXPIRE', KEYS[1], full_in + 1000)
end
return {wait, now, exact_number(left[1]), exact_number(left[2])}
