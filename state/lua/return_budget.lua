-- return_budget.lua: return tokens that a request did not need. What exceeds a burst is cut at the next call.
-- KEYS    as budget.lua
-- ARGV    tokens
local level = tonumber(redis.call('HGET', KEYS[1], 'tokens'))
if level then redis.call('HSET', KEYS[1], 'tokens', exact_number(level + ARGV[1])) end
