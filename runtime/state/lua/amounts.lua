-- amounts.lua: how much of a worker each request holds.
-- KEYS[1] the worker's credits or leases (ledger).   Returns request key, amount, request key, amount, ....
held(KEYS[1])
local found, flat = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  if flat[i] ~= '' and not string.find(flat[i], ' ', 1, true) then
    found[#found + 1] = flat[i]
    found[#found + 1] = tonumber(string.match(flat[i + 1], '^%d+'))
  end
end
return found
