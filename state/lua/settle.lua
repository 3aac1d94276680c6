-- settle.lua: turn a grant into a block lease on one decode worker. Milliseconds.
-- KEYS[1..6] as line.lua, KEYS[7] credits of the granted worker, KEYS[8] leases of the decode worker (ledgers)
-- ARGV    request_key, granted worker_key, num_blocks, max_seqs, ttl_ms.   Returns ok, no_room or expired.
-- Settled again, as after a lost answer, it says ok again. A grant of another worker's stands.
local CREDITS, LEASES = KEYS[7], KEYS[8]
local key, expiry = ARGV[1], now + ARGV[5]
return_expired()
held(CREDITS)
local leased, count = held(LEASES)
local own = held_by(LEASES, key)
local entry = read_entry(key)
if not entry or entry.worker ~= ARGV[2] then
  return (not entry and own and held_by(CREDITS, key)) and 'ok' or 'expired'
end

redis.call('ZREM', GRANTS, key)
-- A lease of an earlier attempt, not yet released, is replaced: it counts once.
local full = leased - (own or 0) + entry.blocks > tonumber(ARGV[3])
if full or count - (own and 1 or 0) >= tonumber(ARGV[4]) then
  let_go(CREDITS, key)
  put_back(key, entry)
  return 'no_room'
end

redis.call('HDEL', ENTRIES, key)
hold(LEASES, key, entry.blocks, expiry)
hold(CREDITS, key, entry.tokens, expiry)
return 'ok'
