-- return_budget.lua: give tokens back that a request did not need. More than a burst is cut when next asked for.
-- KEYS    as budget.lua
-- ARGV    tokens
local level = tonumber(redis.call('HGET', KEYS[1], 'tokens'))
if level then redis.call('HSET', KEYS[1], 'tokens', exact_number(level + ARGV[1])) end
