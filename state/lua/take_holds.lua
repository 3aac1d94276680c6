-- take_holds.lua: enter credits or leases again that a restarted server may have lost. Milliseconds.
-- KEYS[1] the worker's credits or leases (ledger)
-- ARGV    ttl_ms, request_key, amount, ....
held(KEYS[1])
for i = 2, #ARGV, 2 do
  if not held_by(KEYS[1], ARGV[i]) then hold(KEYS[1], ARGV[i], tonumber(ARGV[i + 1]), now + ARGV[1]) end
end
