-- release_lease.lua: release a lease and its seats, once, and notify every router if requests wait for capacity.
-- KEYS[1..11] as line.lua, KEYS[12] the worker's leases (ledger)
-- ARGV    request_key, nudge channel.   Returns 1 if it was held, else 0.
local released, somebody_waits = release(KEYS[12], ARGV[1]), redis.call('EXISTS', KEYS[1]) == 1
leave_seats(ARGV[1], not somebody_waits)
if released == 1 and somebody_waits then redis.call('PUBLISH', ARGV[2], '') end
return released
