-- enqueue.lua: put a request in its place in the fleet's queue. Milliseconds.
-- KEYS    as line.lua
-- ARGV    request_key, router_id, slo_class, due_in_ms, work_tokens, blocks, capacity, adapter, seats, share, 1 if
--         it takes no turns, else 0.
-- Returns {position, work_ahead_tokens}, or {-1, 0} if the queue is full.
-- A request that is enqueued again in its class only moves forward: routers repeat the call each second, and a
-- request that is overdue, or due on arrival, would be due later each time. A grant stays valid.
return_expired()
called(ARGV[2])
local key = ARGV[1]
if redis.call('ZSCORE', GRANTS, key) then return {0, 0} end
local waiting = read_entry(key)
if not waiting and redis.call('ZCARD', QUEUE) >= tonumber(ARGV[7]) then return {-1, 0} end

local score = ARGV[3] * CLASS_SCORE + now + ARGV[4]
if waiting then
  if math.floor(waiting.score / CLASS_SCORE) == tonumber(ARGV[3]) then score = math.min(score, waiting.score) end
  leave_line(key, waiting)
end
local entry = {
  score = score, tokens = tonumber(ARGV[5]), blocks = tonumber(ARGV[6]), grants_lost = 0, worker = '-',
  router = ARGV[2], adapter = ARGV[8], seats = tonumber(ARGV[9]), share = tonumber(ARGV[10]), is_firm = ARGV[11] == '1',
}
write_entry(key, entry)
join_line(key, entry)
local position = redis.call('ZRANK', QUEUE, key)
return {position, position > 0 and work_ahead(key, score) or 0}
