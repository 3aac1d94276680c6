-- prelude.lua: put before every other script.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) -- milliseconds, Redis's own clock

-- Total and count of a hash of `amount expiry` (a worker's credits or leases); what has expired is removed.
local function held(key)
  local total, count = 0, 0
  local flat = redis.call('HGETALL', key)
  for i = 1, #flat, 2 do
    local amount, expiry = string.match(flat[i + 1], '^(%d+) (%d+)$')
    if tonumber(expiry) <= now then
      redis.call('HDEL', key, flat[i])
    else
      total, count = total + tonumber(amount), count + 1
    end
  end
  return total, count
end
