-- release.lua: release a credit or a lease, once, and notify every router.
-- KEYS[1] the worker's credits or leases (ledger)
-- ARGV    request_key, nudge channel.   Returns 1 if it was held, else 0.
held(KEYS[1])
local released = release(KEYS[1], ARGV[1])
if released == 1 then redis.call('PUBLISH', ARGV[2], '') end
return released
