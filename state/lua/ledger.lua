-- ledger.lua: precedes the scripts that use ledgers: what requests hold of one worker, prompt tokens or blocks.
-- A ledger is a hash from request key to `amount expiry`. Its field '' is `total soonest`: the sum of all amounts and
-- a time before which none expires, so that reading the total reads one field. Milliseconds.
-- A request with several seats has a further field `key number` for each after the first, of the amount 0: what is
-- counted are seats.

local function read_head(ledger)
  local total, soonest = string.match(redis.call('HGET', ledger, '') or '', '^(%d+) (%d+)$')
  return tonumber(total), tonumber(soonest)
end

local function write_head(ledger, total, soonest)
  redis.call('HSET', ledger, '', string.format('%d %d', total, soonest))
end

-- Remove expired holds; return total and count of the others, each as often as it has seats.
local function held(ledger)
  local total, soonest = read_head(ledger)
  if not total then return 0, 0 end
  if soonest > now then return total, redis.call('HLEN', ledger) - 1 end
  local count, flat = 0, redis.call('HGETALL', ledger)
  total, soonest = 0, nil
  for i = 1, #flat, 2 do
    if flat[i] ~= '' then
      local amount, expiry = string.match(flat[i + 1], '^(%d+) (%d+)$')
      expiry = tonumber(expiry)
      if expiry <= now then
        redis.call('HDEL', ledger, flat[i])
      else
        total, count = total + amount, count + 1
        soonest = math.min(soonest or expiry, expiry)
      end
    end
  end
  if count == 0 then redis.call('DEL', ledger) else write_head(ledger, total, soonest) end
  return total, count
end

-- Return what the request holds and until when, or nil.
local function held_by(ledger, key)
  local amount, expiry = string.match(redis.call('HGET', ledger, key) or '', '^(%d+) (%d+)$')
  return tonumber(amount), tonumber(expiry)
end

local function seats_of(ledger, key)
  local seats = redis.call('HEXISTS', ledger, key)
  while seats > 0 and redis.call('HEXISTS', ledger, key .. ' ' .. seats + 1) == 1 do seats = seats + 1 end
  return seats
end

-- Return whether the request may hold this amount. What it already holds, by its grant or for an earlier attempt,
-- counts once. A request with more seats than there are takes all of them.
local function has_room(ledger, key, amount, most_amount, seats, most_seats)
  local total, count = held(ledger)
  most_seats = tonumber(most_seats)
  return total - (held_by(ledger, key) or 0) + amount <= tonumber(most_amount)
    and count - seats_of(ledger, key) + math.max(1, math.min(seats, most_seats)) <= most_seats
end

-- Hold an amount in place of what the request held before.
local function hold(ledger, key, amount, expiry, seats)
  local total, soonest = read_head(ledger)
  total = (total or 0) - (held_by(ledger, key) or 0) + amount
  redis.call('HSET', ledger, key, string.format('%d %d', amount, expiry))
  for seat = 2, seats do redis.call('HSET', ledger, key .. ' ' .. seat, string.format('0 %d', expiry)) end
  while redis.call('HDEL', ledger, key .. ' ' .. seats + 1) == 1 do seats = seats + 1 end
  write_head(ledger, total, math.min(soonest or expiry, expiry))
  -- If nobody reads this ledger again, Redis deletes it a day after the last hold. Its own expiry follows its clock's
  -- jumps.
  if redis.call('PTTL', ledger) < DAY_MS / 2 then redis.call('PEXPIRE', ledger, DAY_MS) end
end

-- Hold at least this amount, at least until `expiry`.
local function hold_at_least(ledger, key, amount, expiry, seats)
  local own, own_expiry = held_by(ledger, key)
  seats = math.max(seats_of(ledger, key), seats)
  hold(ledger, key, math.max(own or 0, amount), math.max(own_expiry or 0, expiry), seats)
end

-- Release what the request holds. Return 1 if it held something, else 0.
local function release(ledger, key)
  local amount = held_by(ledger, key)
  if not amount then return 0 end
  local total, soonest = read_head(ledger)
  for seat = 2, seats_of(ledger, key) do redis.call('HDEL', ledger, key .. ' ' .. seat) end
  redis.call('HDEL', ledger, key)
  if redis.call('HLEN', ledger) == 1 then
    redis.call('DEL', ledger)
  else
    write_head(ledger, total - amount, soonest)
  end
  return 1
end
