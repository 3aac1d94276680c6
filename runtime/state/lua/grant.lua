-- grant.lua: grant a worker's free capacity to the head of the queue, while there is capacity. Milliseconds.
-- KEYS[1..11] as line.lua, KEYS[12] the worker's credits, KEYS[13..] leases of the decode workers (ledgers)
-- ARGV    worker_key, limit_tokens, most grants, calling router, channel prefix of routers, the worker's adapters
--         (separated by spaces), how many entries to look at, prompts up to which more are granted whatever their
--         tokens, then worker_key, num_blocks, max_seqs and adapters of
--         each decode worker.
-- Returns request key, decode worker_key, ... of the caller's grants; other routers get theirs over their channels.
-- A grant holds its blocks and its seats on that decode worker, so that no other grant takes them.
-- Where the head takes turns, the tenant of its class with the fewest seats has the turn, with its first request.
-- A head that fits nowhere waits, and no request behind it passes it. One whose adapter the worker does not have is
-- passed: it waits for another worker.
-- Nothing is granted while peers have yet to enter what they hold (see enter.lua).
local CREDITS, FIRST_ROOM, ADAPTERS, LOOKS, MIN_PROMPTS = KEYS[12], 13, ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
return_expired()
redis.call('HSET', EPOCH, 'called:' .. ARGV[4], now)
local function has(adapters, adapter)
  return adapter == '' or string.find(' ' .. adapters .. ' ', ' ' .. adapter .. ' ', 1, true) ~= nil
end

-- Return the first request that the worker has the adapter for, and its entry; nil if there is none near the head.
local function find_first()
  local first, last = 0, 0
  while first < LOOKS do
    local found = redis.call('ZRANGE', QUEUE, first, last)
    for _, key in ipairs(found) do
      local entry = read_entry(key)
      if has(ADAPTERS, entry.adapter) then return key, entry end
    end
    if #found <= last - first then return nil end
    first, last = last + 1, LOOKS - 1
  end
  return nil
end

-- Return the rank of a place in the queue; nil if a router of an older version, which knows no lanes, took it out.
local function rank_of(place, is_firm)
  local score, key = string.match(place, '^(%S+) (.*)$')
  local rank = redis.call('ZRANK', QUEUE, key)
  if not rank then leave_lane(key, tonumber(score), is_firm) end
  return rank
end

-- Return the request whose turn it is and its entry, instead of the first one, which takes turns. It passes none of its
-- class that takes no turns, as those are promised a time.
local function find_turn(first, its_entry)
  local class = math.floor(its_entry.score / CLASS_SCORE)
  local from, to = string.format('%.0f', class * TURN_CLASS), string.format('(%.0f', (class + 1) * TURN_CLASS)
  local turn = redis.call('ZRANGEBYSCORE', TURNS, from, to, 'LIMIT', 0, 1)[1]
  if not turn or string.match(turn, ' (.*)$') == first then return first, its_entry end
  local lane = lane_of(class, '\1')
  local firm, firm_rank = redis.call('ZRANGEBYLEX', LANES, '[' .. lane, '(' .. lane .. '~', 'LIMIT', 0, 1)[1], nil
  if firm then firm_rank = rank_of(string.sub(firm, #lane + 1), true) end
  for _, place in ipairs(redis.call('ZRANGEBYSCORE', TURNS, from, to, 'LIMIT', 0, LOOKS)) do
    local rank = rank_of(place, false)
    if rank and (not firm_rank or rank < firm_rank) then
      local key = string.match(place, ' (.*)$')
      local entry = read_entry(key)
      if has(ADAPTERS, entry.adapter) then return key, entry end
    end
  end
  return first, its_entry
end

-- Return ledger and key of the first decode worker with room, or nil. Reads only as many ledgers as needed.
local function find_room(key, entry)
  for i = FIRST_ROOM, #KEYS do
    local room = 9 + (i - FIRST_ROOM) * 4
    if has(ARGV[room + 3], entry.adapter)
      and has_room(KEYS[i], key, entry.blocks, ARGV[room + 1], entry.seats, ARGV[room + 2]) then
      return KEYS[i], ARGV[room]
    end
  end
  return nil
end

-- Send a grant to its router. Return false if nobody receives it: a router that is gone or stands still gets no
-- grants, and uses up none of the others' grants. One with waiting requests asks for a place or for grants each second,
-- which the epoch records; it stands still if it has not for SILENT_MS, even if its subscription is alive.
local function notify(router, decoder, key)
  if router == ARGV[4] then return true end
  local asked_at = redis.call('HGET', EPOCH, 'called:' .. router)
  if asked_at and now - asked_at > SILENT_MS then return false end
  return redis.call('PUBLISH', ARGV[5] .. router, ARGV[1] .. ' ' .. decoder .. ' ' .. key) > 0
end

local granted, left, bound = {}, tonumber(ARGV[3]), held(CREDITS)

local function takes_more()
  return left > 0 and (bound < tonumber(ARGV[2]) or MIN_PROMPTS > 0 and redis.call('HLEN', CREDITS) - 1 < MIN_PROMPTS)
end

if not takes_more() or tonumber(redis.call('HGET', EPOCH, 'quiet_until') or 0) > now then return {} end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', SEAT_EXPIRIES, '-inf', now)) do leave_seats(key) end
while takes_more() do
  local head, entry = find_first()
  if not head then break end
  if not entry.is_firm then head, entry = find_turn(head, entry) end
  local leases, decoder = find_room(head, entry)
  if not leases then break end
  local is_taken = notify(entry.router, decoder, head)
  leave_line(head, entry, is_taken)
  if is_taken then
    left = left - 1
    entry.worker = ARGV[1]
    write_entry(head, entry)
    redis.call('ZADD', GRANTS, now + GRANT_TTL_MS, head)
    bound = hold(CREDITS, head, entry.tokens, now + GRANT_TTL_MS, 1) -- what an earlier attempt held counts once
    hold(leases, head, entry.blocks, now + GRANT_TTL_MS, entry.seats, true)
    if not take_seats(head, entry.share, now + GRANT_TTL_MS) and not entry.is_firm then
      put_next_turn(math.floor(entry.score / CLASS_SCORE), tenant_of(head))
    end
    if entry.router == ARGV[4] then
      granted[#granted + 1] = head
      granted[#granted + 1] = decoder
    end
  else
    redis.call('HDEL', ENTRIES, head)
  end
end
return granted
