-- release.lua: return a credit or a lease, once; tell every router that capacity has come back.
-- KEYS[1] the worker's credits or leases (ledger)
-- ARGV    request_key, nudge channel.   Returns 1 when it was held, else 0.
held(KEYS[1])
local released = let_go(KEYS[1], ARGV[1])
if released == 1 then redis.call('PUBLISH', ARGV[2], '') end
return released
