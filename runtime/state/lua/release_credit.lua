-- release_credit.lua: release a credit, once, and notify every router if requests wait for capacity.
-- KEYS[1] the worker's credits (ledger), KEYS[2] queue (zset)
-- ARGV    request_key, nudge channel.   Returns 1 if it was held, else 0.
local released = release(KEYS[1], ARGV[1])
if released == 1 and redis.call('EXISTS', KEYS[2]) == 1 then redis.call('PUBLISH', ARGV[2], '') end
return released
