-- settle.lua: turn a grant into a block lease on the first of some decode workers that has room. Milliseconds.
-- KEYS[1..6] as line.lua, KEYS[7] credits of the granted worker, KEYS[8..] leases of the decode workers (ledgers)
-- ARGV    request_key, granted worker_key, ttl_ms, then num_blocks and max_seqs of each decode worker.
-- Returns {ok, which decode worker, from 1}, {no_room} or {expired}.
-- One of them is the decode worker that the grant holds room on; nothing stays held on those that are not taken.
-- Settled again, as after a lost answer, it says ok again. A grant of another worker's stands.
local CREDITS, FIRST_ROOM = KEYS[7], 8
local key, expiry = ARGV[1], now + ARGV[3]

local function let_go_but(kept)
  for i = FIRST_ROOM, #KEYS do
    if KEYS[i] ~= kept then let_go(KEYS[i], key) end
  end
end

return_expired()
for i = 7, #KEYS do held(KEYS[i]) end -- what has expired is gone
local entry = read_entry(key)

if not entry then
  for i = FIRST_ROOM, #KEYS do
    if held_by(KEYS[i], key) and held_by(CREDITS, key) then
      hold_at_least(KEYS[i], key, 0, expiry)
      hold_at_least(CREDITS, key, 0, expiry)
      return {'ok', i - FIRST_ROOM + 1}
    end
  end
  return {'expired'}
end
if entry.worker ~= ARGV[2] then
  if entry.worker == '-' then -- it waits again
    let_go(CREDITS, key)
    let_go_but(nil)
  end
  return {'expired'}
end

redis.call('ZREM', GRANTS, key)
for i = FIRST_ROOM, #KEYS do
  local room = 4 + (i - FIRST_ROOM) * 2
  if has_room(KEYS[i], key, entry.blocks, ARGV[room], ARGV[room + 1]) then
    redis.call('HDEL', ENTRIES, key)
    let_go_but(KEYS[i])
    hold(KEYS[i], key, entry.blocks, expiry)
    hold(CREDITS, key, entry.tokens, expiry)
    return {'ok', i - FIRST_ROOM + 1}
  end
end
let_go(CREDITS, key)
let_go_but(nil)
put_back(key, entry)
return {'no_room'}
