-- settle.lua: turn a grant into a block lease on one decode worker. Milliseconds.
-- KEYS[1] queue (zset), KEYS[2] entries (hash), KEYS[3] grants (zset), KEYS[4] credits of the granted worker
-- (hash), KEYS[5] leases of the decode worker (hash)
-- ARGV    request_key, num_blocks, max_seqs, ttl_ms.   Returns ok, no_room or expired.
local expiry = redis.call('ZSCORE', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
if not expiry then return 'expired' end
if tonumber(expiry) <= now then
  redis.call('HDEL', KEYS[2], ARGV[1])
  return 'expired' -- its credit has run out with it
end

local score, tokens, blocks = string.match(redis.call('HGET', KEYS[2], ARGV[1]), '^(%S+) (%d+) (%d+) ')
local leased, count = held(KEYS[5])
if leased + blocks > tonumber(ARGV[2]) or count >= tonumber(ARGV[3]) then
  redis.call('ZADD', KEYS[1], score, ARGV[1])
  redis.call('HDEL', KEYS[4], ARGV[1])
  return 'no_room'
end

redis.call('HSET', KEYS[5], ARGV[1], string.format('%d %d', blocks, now + ARGV[4]))
redis.call('HSET', KEYS[4], ARGV[1], string.format('%d %d', tokens, now + ARGV[4]))
redis.call('HDEL', KEYS[2], ARGV[1])
return 'ok'
