-- return_budget.lua: return tokens that a request did not need. What exceeds a burst is cut at the next call.
-- KEYS    as budget.lua
-- ARGV    tokens. With a receipt: the call that was refused, or '' if the request has ended, which costs what the whole
--         may cost less these tokens; for how many milliseconds the receipt of an ended request is kept, and how many
--         calls count as made then.
local level, tokens = tonumber(redis.call('HGET', KEYS[1], 'tokens')), tonumber(ARGV[1])
if RECEIPT then
  local paid, whole, call, taken = unpack(redis.call('HMGET', RECEIPT, 'paid', 'whole', 'call', 'taken'))
  if ARGV[2] ~= '' then
    -- Another call that came since counts on what this one has paid.
    tokens = call == ARGV[2] and tonumber(taken) or 0
    if tokens > 0 then
      redis.call('HSET', RECEIPT, 'paid', math.max(0, paid - tokens), 'taken', 0)
      redis.call('PEXPIRE', RECEIPT, ARGV[3])
    end
  elseif paid then
    tokens = math.max(0, paid - (whole - tokens))
    local calls = math.max(redis.call('HGET', RECEIPT, 'calls'), ARGV[4])
    redis.call('HSET', RECEIPT, 'paid', math.max(0, paid - tokens), 'calls', calls)
    redis.call('PEXPIRE', RECEIPT, ARGV[3])
  end
end
if level then redis.call('HSET', KEYS[1], 'tokens', exact_number(level + tokens)) end
