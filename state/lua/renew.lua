-- renew.lua: prolong credits or leases that are still held. Milliseconds.
-- KEYS[1..11] as line.lua, KEYS[12] the worker's credits or leases (ledger)
-- ARGV    ttl_ms, 1 for leases or 0 for credits, request_key, ....   Returns those not held.
local LEDGER, expiry = KEYS[12], now + ARGV[1]
held(LEDGER)
leave_expired_seats()
local lost = {}
for i = 3, #ARGV do
  local amount = held_by(LEDGER, ARGV[i])
  if amount then
    hold(LEDGER, ARGV[i], amount, expiry, seats_of(LEDGER, ARGV[i]))
    if ARGV[2] == '1' then keep_seats(ARGV[i], expiry) end
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
