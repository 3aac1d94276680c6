-- enqueue.lua: put a request in its place in the fleet's queue. Enqueued again, it only moves. Milliseconds.
-- KEYS[1] queue (zset), KEYS[2] entries (hash), KEYS[3] grants (zset)
-- ARGV    request_key, router_id, slo_class, due_in_ms, work_tokens, blocks, capacity.
-- Returns {position, work_ahead_tokens}, or {-1, 0} when the queue is full.
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[7]) then
  return {-1, 0}
end
-- A class outweighs any due time: 10^13 ms are three centuries.
local score = ARGV[3] * 1e13 + now + ARGV[4]
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZADD', KEYS[1], score, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f %d %d %s', score, ARGV[5], ARGV[6], ARGV[2]))
local position = redis.call('ZRANK', KEYS[1], ARGV[1])
local ahead = 0
if position > 0 then
  local keys = redis.call('ZRANGE', KEYS[1], 0, position - 1)
  for first = 1, #keys, 1000 do -- unpack is bounded by Lua's stack
    local last = math.min(first + 999, #keys)
    for _, entry in ipairs(redis.call('HMGET', KEYS[2], unpack(keys, first, last))) do
      ahead = ahead + tonumber(string.match(entry, '^%S+ (%d+)'))
    end
  end
end
return {position, ahead}
