-- line.lua: precedes the scripts that use the queue and the sums of its work. Milliseconds.
-- KEYS[1] queue (zset), KEYS[2] entries (hash), KEYS[3] grants (zset), KEYS[4..6] sums of waiting work by due
-- time in wide, middle and narrow buckets (hashes; an empty bucket has no field), KEYS[7..11] as turns.lua
-- An entry's adapter stands before its router, and behind the adapter `;seats;share;firm`. An entry without an adapter
-- that has one seat at the weight 1 and takes turns has none of these: it is as routers of older versions write it.
-- Those pass the others by, as entries of an adapter that they do not know.
local QUEUE, ENTRIES, GRANTS = KEYS[1], KEYS[2], KEYS[3]
local SUMS = {{hash = KEYS[4], width = 4096}, {hash = KEYS[5], width = 256}, {hash = KEYS[6], width = 16}}

local function bucket(number)
  return string.format('%.0f', number)
end

local function read_entry(key)
  local found = redis.call('HGET', ENTRIES, key)
  if not found then return nil end
  local score, tokens, blocks, lost, worker, router = string.match(found, '^(%S+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  local marks, own_router = string.match(router, '^@(%S+) (.*)$')
  local adapter, seats, share, firm = string.match(marks or '', '^([^;]*);(%d+);(%d+);(%d)$')
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
  for _, level in ipairs(SUMS) do
    local field = bucket(math.floor(score / level.width))
    if redis.call('HINCRBY', level.hash, field, tokens) == 0 then redis.call('HDEL', level.hash, field) end
  end
end

local function join_line(key, entry)
  redis.call('ZADD', QUEUE, bucket(entry.score), key)
  change_lane('ZADD', key, entry.score, entry.is_firm)
  add_to_sums(entry.score, entry.tokens)
end

local function leave_line(key, entry)
  redis.call('ZREM', QUEUE, key)
  change_lane('ZREM', key, entry.score, entry.is_firm)
  add_to_sums(entry.score, 0 - entry.tokens) -- a negated zero would print as -0
end

-- Return an entry whose grant was not settled to the queue.
local function put_back(key, entry)
  entry.worker = '-'
  write_entry(key, entry)
  join_line(key, entry)
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

-- Record, in the epoch, that a router asked for a place or for grants. A router with waiting requests does so each
-- second. A router that has not for SILENT_MS stands still, even if its subscription is alive.
local function called(router)
  redis.call('HSET', EPOCH, 'called:' .. router, now)
end

local function is_silent(router)
  local at = redis.call('HGET', EPOCH, 'called:' .. router)
  return at and now - at > SILENT_MS
end

local function tokens_of(entry)
  return tonumber(string.match(entry, '^%S+ (%d+)'))
end

local function waiting_tokens()
  local total = 0
  for _, sum in ipairs(redis.call('HVALS', SUMS[1].hash)) do total = total + sum end
  return total
end

-- Return the exact work ahead of an entry: the wide buckets before its own, within its own the middle ones, within
-- that the narrow ones, and within its own narrow bucket the entries themselves.
local function work_ahead(key, score)
  local total = 0
  local own = math.floor(score / SUMS[1].width)
  local flat = redis.call('HGETALL', SUMS[1].hash)
  for i = 1, #flat, 2 do
    if tonumber(flat[i]) < own then total = total + flat[i + 1] end
  end
  for i = 2, #SUMS do
    local first, fields = own * SUMS[i - 1].width / SUMS[i].width, {}
    own = math.floor(score / SUMS[i].width)
    for number = first, own - 1 do fields[#fields + 1] = bucket(number) end
    if #fields > 0 then
      for _, sum in ipairs(redis.call('HMGET', SUMS[i].hash, unpack(fields))) do
        if sum then total = total + sum end
      end
    end
  end
  local near = redis.call('ZRANGEBYSCORE', QUEUE, bucket(own * SUMS[#SUMS].width), bucket(score))
  local before = 0
  while near[before + 1] ~= key do before = before + 1 end
  for first = 1, before, 1000 do -- unpack is bounded by Lua's stack
    local last = math.min(first + 999, before)
    for _, entry in ipairs(redis.call('HMGET', ENTRIES, unpack(near, first, last))) do
      total = total + tokens_of(entry)
    end
  end
  return total
end
