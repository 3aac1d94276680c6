-- renew.lua: prolong credits or leases that are still held. Milliseconds.
-- KEYS[1] the worker's credits or leases (ledger)
-- ARGV    ttl_ms, request_key, ....   Returns how many were still held.
held(KEYS[1])
local renewed = 0
for i = 2, #ARGV do
  local amount = held_by(KEYS[1], ARGV[i])
  if amount then
    hold(KEYS[1], ARGV[i], amount, now + ARGV[1])
    renewed = renewed + 1
  end
end
return renewed
