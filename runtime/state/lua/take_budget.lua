-- take_budget.lua: take from all of a tenant's buckets, or from none. A request with a name pays once for its calls.
-- KEYS    as budget.lua
-- ARGV    rate per second, burst and cost of requests, then of tokens; an empty rate means no limit. With a receipt:
--         what is unique to this call, for how many calls a receipt is good, and for how many milliseconds at least.
-- Returns {milliseconds to wait, or 0 if it was taken; now; what is left of requests; of tokens; the tokens taken}.
local requests, tokens, call = tonumber(ARGV[3]), tonumber(ARGV[6]), ARGV[7]
local calls, paid, whole, is_paid = requests, 0, tokens, false
if RECEIPT then
  local known = redis.call('HMGET', RECEIPT, 'calls', 'paid', 'whole', 'call', 'taken')
  if known[4] == call then return {0, now, '0', '0', tonumber(known[5])} end -- its first answer was lost
  if known[1] and (requests == 0 or tonumber(known[1]) < tonumber(ARGV[8])) then
    calls, paid, whole = known[1] + requests, tonumber(known[2]), math.max(known[3], tokens)
    requests, tokens = 0, math.max(0, tokens - paid)
    is_paid = tokens == 0
  end
end
local costs = {requests, tokens}
local wait, full_in, left = 0, 0, {}
for bucket, field in ipairs({'requests', 'tokens'}) do
  local per_s, burst, cost = ARGV[3 * bucket - 2], ARGV[3 * bucket - 1], costs[bucket]
  left[bucket] = 0
  if per_s ~= '' then
    per_s, burst = tonumber(per_s), tonumber(burst)
    local level = filled(field, per_s, burst)
    local missing = math.min(cost, burst) - level
    if missing > 0 and not is_paid then wait = math.max(wait, math.ceil(missing * 1000 / per_s)) end
    left[bucket] = level - cost
    full_in = math.max(full_in, math.ceil((burst - left[bucket]) * 1000 / per_s))
  end
end
if wait == 0 then
  redis.call('HSET', KEYS[1], 'requests', exact_number(left[1]), 'tokens', exact_number(left[2]), 'at', now)
  -- Full buckets need no record.
  redis.call('PEXPIRE', KEYS[1], full_in + 1000)
  if RECEIPT then
    redis.call('HSET', RECEIPT, 'calls', calls, 'paid', paid + tokens, 'whole', whole, 'call', call, 'taken', tokens)
    if redis.call('PTTL', RECEIPT) < tonumber(ARGV[9]) then redis.call('PEXPIRE', RECEIPT, ARGV[9]) end
  end
end
return {wait, now, exact_number(left[1]), exact_number(left[2]), tokens}
