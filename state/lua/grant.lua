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
leave_expired_seats()
called(ARGV[4])
if tonumber(redis.call('HGET', EPOCH, 'quiet_until') or 0) > now then return {} end

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

-- Return the request whose turn it is and its entry, instead of the first one, which takes turns. It passes none of its
-- class that takes no turns, as those are promised a time.
local function find_turn(first, its_entry)
  local class = math.floor(its_entry.score / CLASS_SCORE)
  local from, firm = class * TURN_CLASS, first_of(lane_of(class, FIRM))
  local range = {string.format('%.0f', from), string.format('(%.0f', from + TURN_CLASS)}
  local found = redis.call('ZRANGEBYSCORE', TURNS, range[1], range[2], 'LIMIT', 0, LOOKS)
  local firm_rank = firm and redis.call('ZRANK', QUEUE, string.match(firm, ' (.*)$'))
  for _, place in ipairs(found) do
    local key = string.match(place, ' (.*)$')
    local entry = read_entry(key)
    local is_before = not firm_rank or redis.call('ZRANK', QUEUE, key) < firm_rank
    if is_before and has(ADAPTERS, entry.adapter) then return key, entry end
  end
  return first, its_entry
end

local function find_head()
  local key, entry = find_first()
  if not key or entry.is_firm then return key, entry end
  return find_turn(key, entry)
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
-- grants, and uses up none of the others' grants.
local function notify(router, decoder, key)
  if router == ARGV[4] then return true end
  if is_silent(router) then return false end
  return redis.call('PUBLISH', ARGV[5] .. router, ARGV[1] .. ' ' .. decoder .. ' ' .. key) > 0
end

local granted, left = {}, tonumber(ARGV[3])
local bound, prompts = held(CREDITS)
while left > 0 and (bound < tonumber(ARGV[2]) or prompts < MIN_PROMPTS) do
  local head, entry = find_head()
  if not head then break end
  local leases, decoder = find_room(head, entry)
  if not leases then break end
  leave_line(head, entry)
  if notify(entry.router, decoder, head) then
    left = left - 1
    entry.worker = ARGV[1]
    write_entry(head, entry)
    redis.call('ZADD', GRANTS, now + GRANT_TTL_MS, head)
    hold(CREDITS, head, entry.tokens, now + GRANT_TTL_MS, 1)
    hold_at_least(leases, head, entry.blocks, now + GRANT_TTL_MS, entry.seats)
    take_seats(head, entry.share, now + GRANT_TTL_MS)
    bound, prompts = held(CREDITS) -- what the request held for an earlier attempt counts once
    if entry.router == ARGV[4] then
      granted[#granted + 1] = head
      granted[#granted + 1] = decoder
    end
  else
    redis.call('HDEL', ENTRIES, head)
  end
end
return granted
