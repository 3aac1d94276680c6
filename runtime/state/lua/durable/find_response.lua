-- find_response.lua: return a response that is not over yet, or nothing.
-- KEYS[1] the tenant's responses (hash by id)    KEYS[2] when each of them is over (zset, milliseconds)
-- ARGV    id
local time = redis.call('TIME')
local over = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not over or tonumber(over) <= time[1] * 1000 + math.floor(time[2] / 1000) then return false end
return redis.call('HGET', KEYS[1], ARGV[1])
