-- settle.lua: turn a grant into a block lease on the first of the given decode workers with room. Milliseconds.
-- KEYS[1..11] as line.lua, KEYS[12] credits of the granted worker, KEYS[13..] leases of the decode workers (ledgers)
-- ARGV    request_key, granted worker_key, ttl_ms, then num_blocks and max_seqs of each decode worker.
-- Returns {ok, index of the decode worker from 1}, {no_room} or {expired}.
-- They include the decode worker on which the grant holds room; holds on all but the chosen one are released.
-- A repeated call, as after a lost response, returns ok again. A grant for another worker stays valid.
local CREDITS, FIRST_ROOM = KEYS[12], 13
local key, expiry = ARGV[1], now + ARGV[3]

local function holds(ledger)
  local _, _, amount = look_up(ledger, key)
  return amount ~= nil
end

local function release_but(kept)
  for i = FIRST_ROOM, #KEYS do
    if KEYS[i] ~= kept then release(KEYS[i], key) end
  end
end

return_expired()
local entry = read_entry(key)

if not entry then
  for i = FIRST_ROOM, #KEYS do
    if holds(KEYS[i]) and holds(CREDITS) then
      hold(KEYS[i], key, 0, expiry, 1, true)
      hold(CREDITS, key, 0, expiry, 1, true)
      redis.call('ZADD', SEAT_EXPIRIES, 'XX', 'GT', expiry, key)
      return {'ok', i - FIRST_ROOM + 1}
    end
  end
  return {'expired'}
end
if entry.worker ~= ARGV[2] then
  if entry.worker == '-' then -- it waits again
    release(CREDITS, key)
    release_but(nil)
    leave_seats(key)
  end
  return {'expired'}
end

redis.call('ZREM', GRANTS, key)
for i = FIRST_ROOM, #KEYS do
  local room = 4 + (i - FIRST_ROOM) * 2
  if has_room(KEYS[i], key, entry.blocks, ARGV[room], entry.seats, ARGV[room + 1]) then
    redis.call('HDEL', ENTRIES, key)
    release_but(KEYS[i])
    hold(KEYS[i], key, entry.blocks, expiry, entry.seats)
    hold(CREDITS, key, entry.tokens, expiry, 1)
    take_seats(key, entry.share, expiry)
    return {'ok', i - FIRST_ROOM + 1}
  end
end
release(CREDITS, key)
release_but(nil)
leave_seats(key)
put_back(key, entry)
return {'no_room'}
