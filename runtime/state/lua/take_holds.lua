-- take_holds.lua: enter credits or leases again that a restarted server may have lost. Milliseconds.
-- KEYS[1..11] as line.lua, KEYS[12] the worker's credits or leases (ledger)
-- ARGV    ttl_ms, 1 for leases or 0 for credits, then request_key, amount, seats and share of each.
local LEDGER, expiry = KEYS[12], now + ARGV[1]
for i = 3, #ARGV, 4 do
  local key, amount, seats, share = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local _, _, own = look_up(LEDGER, key)
  if not own then
    hold(LEDGER, key, amount, expiry, seats)
    if ARGV[2] == '1' then take_seats(key, share, expiry) end
  end
end
