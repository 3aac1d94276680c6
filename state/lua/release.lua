-- release.lua: release a credit or a lease, once, and notify every router if requests wait for capacity.
-- KEYS[1..11] as line.lua, KEYS[12] the worker's credits or leases (ledger)
-- ARGV    request_key, 1 for a lease or 0 for a credit, nudge channel.   Returns 1 if it was held, else 0.
local LEDGER = KEYS[12]
held(LEDGER)
local released = release(LEDGER, ARGV[1])
if ARGV[2] == '1' then leave_seats(ARGV[1]) end
if released == 1 and redis.call('EXISTS', QUEUE) == 1 then redis.call('PUBLISH', ARGV[3], '') end
return released
