-- line.lua: precedes the scripts that use the queue and the sums of its work, after lanes.lua. Milliseconds.
-- KEYS[1] queue (zset), KEYS[2] entries (hash), KEYS[3] grants (zset), KEYS[4..6] sums of waiting work by due
-- time in wide, middle and narrow buckets (hashes; an empty bucket has no field), KEYS[7..11] as lanes.lua
-- An entry's adapter stands before its router, and behind the adapter `;seats;share;firm`. An entry without an adapter
-- that has one seat at the weight 1 and takes turns has none of these: it is as routers of older versions write it.
-- Those pass the others by, as entries of an adapter that they do not know.
local QUEUE, ENTRIES, GRANTS = KEYS[1], KEYS[2], KEYS[3]
local SUMS, WIDTHS = {KEYS[4], KEYS[5], KEYS[6]}, {4096, 256, 16}

local function read_entry(key)
  local found = redis.call('HGET', ENTRIES, key)
  if not found then return nil end
  local score, tokens, blocks, lost, worker, router = string.match(found, '^(%S+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  local marks, own_router, adapter, seats, share, firm
  if string.sub(router, 1, 1) == '@' then
    marks, own_router = string.match(router, '^@(%S+) (.*)$')
    adapter, seats, share, firm = string.match(marks or '', '^([^;]*);(%d+);(%d+);(%d)$')
  end
  return {
    score = tonumber(score), tokens = tonumber(tokens), blocks = tonumber(blocks), grants_lost = tonumber(lost),
    worker = worker, router = own_router or router, adapter = adapter or marks or '', seats = tonumber(seats or 1),
    share = tonumber(share or SEAT_SHARE), is_firm = firm == '1',
  }
end

local function write_entry(key, entry)
  local marks = entry.adapter
  if entry.seats ~= 1 or entry.share ~= SEAT_SHARE or entry.is_firm then
    marks = string.format('%s;%d;%d;%d', marks, entry.seats, entry.share, entry.is_firm and 1 or 0)
  end
  if marks ~= '' then marks = '@' .. marks .. ' ' end
  redis.call('HSET', ENTRIES, key, string.format('%.0f %d %d %d %s %s%s', entry.score, entry.tokens, entry.blocks,
    entry.grants_lost, entry.worker, marks, entry.router))
end

local function add_to_sums(score, tokens)
  for i = 1, #SUMS do
    local field = math.floor(score / WIDTHS[i])
    if redis.call('HINCRBY', SUMS[i], field, tokens) == 0 then redis.call('HDEL', SUMS[i], field) end
  end
end

local function join_line(key, entry)
  redis.call('ZADD', QUEUE, entry.score, key)
  join_lane(key, entry.score, entry.is_firm)
  add_to_sums(entry.score, entry.tokens)
end

-- Take an entry out of the queue; `leaves_turn` as in lanes.lua.
local function leave_line(key, entry, leaves_turn)
  redis.call('ZREM', QUEUE, key)
  leave_lane(key, entry.score, entry.is_firm, leaves_turn)
  add_to_sums(entry.score, 0 - entry.tokens) -- a negated zero would print as -0
end

-- Return an entry whose grant was not settled to the queue.
local function put_back(key, entry)
  entry.worker = '-'
  write_entry(key, entry)
  join_line(key, entry)
end

-- Forget the first places while their routers have asked for nothing for so long that whatever these held has expired.
-- A router that is gone never takes its requests out, and a fleet without other work grants nothing.
local function forget_abandoned()
  for _ = 1, MOST_FORGOTTEN do
    local key = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    if not key then return end
    local entry = read_entry(key)
    local asked_at = redis.call('HGET', EPOCH, 'called:' .. entry.router)
    if not asked_at or now - asked_at <= ABANDONED_MS then return end
    leave_line(key, entry)
    redis.call('HDEL', ENTRIES, key)
  end
end

-- Return the requests of expired grants to their places, a few times each.
local function return_expired()
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', GRANTS, '-inf', now)) do
    redis.call('ZREM', GRANTS, key)
    local entry = read_entry(key)
    if entry.grants_lost < MAX_GRANTS_LOST then
      entry.grants_lost = entry.grants_lost + 1
      put_back(key, entry)
    else
      redis.call('HDEL', ENTRIES, key)
    end
  end
end
