-- ledger.lua: precedes the scripts that read ledgers: what requests hold of one worker, prompt tokens or blocks.
-- A ledger is a hash from request key to `amount expiry`. Its field '' is `total soonest`: the sum of all amounts and
-- a time before which none expires, so that reading the total reads one field. Milliseconds.
-- A request with several seats has a further field `key number` for each after the first, of the amount 0: what is
-- counted are seats.

-- Return both numbers of a field, or nil.
local function numbers_in(field)
  if not field then return nil end
  local first, second = string.match(field, '^(%d+) (%d+)$')
  return tonumber(first), tonumber(second)
end

-- Remove expired holds. If nobody uses the ledger again, Redis deletes it after a day. A ledger in use comes here each
-- time that its soonest expiry has passed. Redis's own expiry follows its clock's jumps.
local function remove_expired(ledger)
  local total, soonest, flat = 0, nil, redis.call('HGETALL', ledger)
  for i = 1, #flat, 2 do
    if flat[i] ~= '' then
      local amount, expiry = numbers_in(flat[i + 1])
      if expiry <= now then
        redis.call('HDEL', ledger, flat[i])
      else
        total, soonest = total + amount, math.min(soonest or expiry, expiry)
      end
    end
  end
  if soonest then
    redis.call('HSET', ledger, '', string.format('%d %d', total, soonest))
    redis.call('PEXPIRE', ledger, DAY_MS)
  else
    redis.call('DEL', ledger)
  end
  return total, soonest
end

-- Remove expired holds; return the sum of the others, and a time before which none of them expires, if there are any.
local function held(ledger)
  local total, soonest = numbers_in(redis.call('HGET', ledger, ''))
  if soonest and soonest <= now then return remove_expired(ledger) end
  return total or 0, soonest
end
