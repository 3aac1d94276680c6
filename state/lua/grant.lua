-- grant.lua: give a worker's free capacity to the head of the queue, as often as both last. Milliseconds.
-- KEYS[1] queue (zset), KEYS[2] entries (hash), KEYS[3] grants (zset), KEYS[4] the worker's credits (hash),
-- KEYS[5..] leases of the decode workers (hashes)
-- ARGV    worker_key, limit_tokens, grant_ttl_ms, calling router, channel prefix of routers, then num_blocks and
--         max_seqs of each decode worker.
-- Returns the caller's request keys that were granted; the other routers are told over their channels.
-- A head that fits nowhere waits and is not passed: what is behind it may be granted only after it.
for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now)) do
  redis.call('ZREM', KEYS[3], key)
  redis.call('HDEL', KEYS[2], key)
end

local rooms = {}
for i = 5, #KEYS do
  local blocks, seqs = held(KEYS[i])
  local j = 6 + (i - 5) * 2
  rooms[#rooms + 1] = {blocks = ARGV[j] - blocks, seqs = ARGV[j + 1] - seqs}
end

local function take_room(blocks)
  for _, room in ipairs(rooms) do
    if room.blocks >= blocks and room.seqs > 0 then
      room.blocks, room.seqs = room.blocks - blocks, room.seqs - 1
      return true
    end
  end
  return false
end

local granted = {}
local bound = held(KEYS[4])
while bound < tonumber(ARGV[2]) do
  local head = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
  if not head then break end
  local tokens, blocks, router = string.match(redis.call('HGET', KEYS[2], head), '^%S+ (%d+) (%d+) (.+)$')
  if not take_room(tonumber(blocks)) then break end
  redis.call('ZREM', KEYS[1], head)
  redis.call('ZADD', KEYS[3], now + ARGV[3], head)
  redis.call('HSET', KEYS[4], head, string.format('%d %d', tokens, now + ARGV[3]))
  bound = bound + tonumber(tokens)
  if router == ARGV[4] then
    granted[#granted + 1] = head
  else
    redis.call('PUBLISH', ARGV[5] .. router, ARGV[1] .. ' ' .. head)
  end
end
return granted
