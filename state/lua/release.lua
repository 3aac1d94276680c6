-- release.lua: return a credit or a lease, once; tell every router that capacity has come back.
-- KEYS[1] the worker's credits or leases (hash)
-- ARGV    request_key, nudge channel.   Returns 1 when it was held, else 0.
local held = redis.call('HDEL', KEYS[1], ARGV[1])
if held == 1 then redis.call('PUBLISH', ARGV[2], '') end
return held
