-- enqueue.lua: put a request in its place in the fleet's queue. Milliseconds.
-- KEYS    as line.lua
-- ARGV    request_key, router_id, slo_class, due_in_ms, work_tokens, blocks, capacity, adapter, seats, share, 1 if
--         it takes no turns, else 0.
-- Returns {position, work_ahead_tokens}, or {-1, 0} if the queue is full.
-- A request that is enqueued again in its class only moves forward: routers repeat the call each second, and a
-- request that is overdue, or due on arrival, would be due later each time. A grant stays valid.
-- Return the work of the first entries of a list of keys.
local function work_of(found, num_first)
  local total = 0
  for first = 1, num_first, 1000 do -- unpack is bounded by Lua's stack
    local last = math.min(first + 999, num_first)
    for _, entry in ipairs(redis.call('HMGET', ENTRIES, unpack(found, first, last))) do
      total = total + string.match(entry, '^%S+ (%d+)')
    end
  end
  return total
end

-- Return the exact work ahead of an entry. Where few are before it, it is theirs. Else it is that of the wide buckets
-- before its own, within its own of the middle ones, within that of the narrow ones, and within its own narrow bucket
-- of the entries themselves.
local function work_ahead(key, score, position)
  if position <= 32 then return work_of(redis.call('ZRANGE', QUEUE, 0, position - 1), position) end
  local total, own, flat = 0, math.floor(score / WIDTHS[1]), redis.call('HGETALL', SUMS[1])
  for i = 1, #flat, 2 do
    if tonumber(flat[i]) < own then total = total + flat[i + 1] end
  end
  for i = 2, #SUMS do
    local first, fields = own * WIDTHS[i - 1] / WIDTHS[i], {}
    own = math.floor(score / WIDTHS[i])
    for number = first, own - 1 do fields[#fields + 1] = number end
    if #fields > 0 then
      for _, sum in ipairs(redis.call('HMGET', SUMS[i], unpack(fields))) do
        if sum then total = total + sum end
      end
    end
  end
  local near = redis.call('ZRANGEBYSCORE', QUEUE, own * WIDTHS[#SUMS], score)
  local before = 0
  while near[before + 1] ~= key do before = before + 1 end
  return total + work_of(near, before)
end

return_expired()
forget_abandoned()
redis.call('HSET', EPOCH, 'called:' .. ARGV[2], now) -- see grant.lua
local key = ARGV[1]
local waiting = read_entry(key)
if waiting and waiting.worker ~= '-' then return {0, 0} end
local num_others = waiting and 1 or redis.call('ZCARD', QUEUE)
if not waiting and num_others >= tonumber(ARGV[7]) then return {-1, 0} end

local score = ARGV[3] * CLASS_SCORE + now + ARGV[4]
if waiting and math.floor(waiting.score / CLASS_SCORE) == tonumber(ARGV[3]) then
  score = math.min(score, waiting.score)
end
local entry = {
  score = score, tokens = tonumber(ARGV[5]), blocks = tonumber(ARGV[6]), grants_lost = 0, worker = '-',
  router = ARGV[2], adapter = ARGV[8], seats = tonumber(ARGV[9]), share = tonumber(ARGV[10]), is_firm = ARGV[11] == '1',
}
write_entry(key, entry)
if waiting and waiting.score == score and waiting.tokens == entry.tokens and waiting.is_firm == entry.is_firm then
  join_lane(key, score, entry.is_firm) -- a router of an older version, which knows no lanes, may have put it back
else
  if waiting then leave_line(key, waiting) end
  join_line(key, entry)
end
if num_others == 0 then return {0, 0} end
local position = redis.call('ZRANK', QUEUE, key)
return {position, position > 0 and work_ahead(key, score, position) or 0}
