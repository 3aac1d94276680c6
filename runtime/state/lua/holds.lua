-- holds.lua: precedes the scripts that change what requests hold, after ledger.lua. Milliseconds. Seats are those of
-- a decode worker here; those of tenants are in seats.lua.
-- Each function reads all that it needs of a ledger at once: most of a script's time are its calls.

-- Remove expired holds. Return the sum of the others and the soonest expiry, as `held`, then what this request holds,
-- until when, and its seats: nil, nil and 0 if it holds nothing.
local function look_up(ledger, key)
  local head, own, second = unpack(redis.call('HMGET', ledger, '', key, key .. ' 2'))
  local total, soonest = numbers_in(head)
  if soonest and soonest <= now then
    remove_expired(ledger)
    return look_up(ledger, key)
  end
  if not own then return total or 0, soonest, nil, nil, 0 end
  local amount, expiry = numbers_in(own)
  local seats = second and 2 or 1
  while seats > 1 and redis.call('HEXISTS', ledger, key .. ' ' .. seats + 1) == 1 do seats = seats + 1 end
  return total, soonest, amount, expiry, seats
end

-- Return whether the request may hold this amount. What it already holds, by its grant or for an earlier attempt,
-- counts once. A request with more seats than there are takes all of them.
local function has_room(ledger, key, amount, most_amount, seats, most_seats)
  local total, _, own, _, own_seats = look_up(ledger, key)
  if total - (own or 0) + amount > tonumber(most_amount) then return false end
  most_seats = tonumber(most_seats)
  local count = math.max(0, redis.call('HLEN', ledger) - 1) -- each as often as it has seats
  return count - own_seats + math.max(1, math.min(seats, most_seats)) <= most_seats
end

-- Hold an amount in place of what the request held before; if `is_least`, at least the amount, the seats and the time
-- of before. Return the sum of all holds.
local function hold(ledger, key, amount, expiry, seats, is_least)
  local total, soonest, own, own_expiry, own_seats = look_up(ledger, key)
  if is_least and own then
    amount, expiry, seats = math.max(own, amount), math.max(own_expiry, expiry), math.max(own_seats, seats)
  end
  total = total - (own or 0) + amount
  local head = string.format('%d %d', total, math.min(soonest or expiry, expiry))
  redis.call('HSET', ledger, '', head, key, string.format('%d %d', amount, expiry))
  for seat = 2, seats do redis.call('HSET', ledger, key .. ' ' .. seat, string.format('0 %d', expiry)) end
  for seat = seats + 1, own_seats do redis.call('HDEL', ledger, key .. ' ' .. seat) end
  if not soonest then redis.call('PEXPIRE', ledger, DAY_MS) end -- see remove_expired
  return total
end

-- Release what the request holds. Return 1 if it held something, else 0.
local function release(ledger, key)
  local total, soonest, amount, _, seats = look_up(ledger, key)
  if not amount then return 0 end
  redis.call('HDEL', ledger, key)
  for seat = 2, seats do redis.call('HDEL', ledger, key .. ' ' .. seat) end
  total = total - amount
  if total == 0 and redis.call('HLEN', ledger) == 1 then
    redis.call('DEL', ledger)
  else
    redis.call('HSET', ledger, '', string.format('%d %d', total, soonest))
  end
  return 1
end
