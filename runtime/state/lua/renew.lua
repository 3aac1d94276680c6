-- renew.lua: prolong credits or leases that are still held. Milliseconds.
-- KEYS    for leases: when each request's seats expire (zset); then the worker's credits or leases (ledger)
-- ARGV    ttl_ms, request_key, ....   Returns those not held.
local LEDGER, SEAT_EXPIRIES, AT_ONCE = KEYS[#KEYS], KEYS[2] and KEYS[1], 500 -- unpack is bounded by Lua's stack
local expiry, lost = now + ARGV[1], {}
local total, soonest = held(LEDGER)
if not soonest then
  table.remove(ARGV, 1)
  return ARGV
end

for first = 2, #ARGV, AT_ONCE do
  local last = math.min(first + AT_ONCE - 1, #ARGV)
  local asked, holds, seats = {}, {}, {}
  for i = first, last do
    asked[#asked + 1] = ARGV[i]
    asked[#asked + 1] = ARGV[i] .. ' 2'
  end
  local found = redis.call('HMGET', LEDGER, unpack(asked))
  for i = 1, #asked, 2 do
    local key, amount = asked[i], numbers_in(found[i])
    if amount then
      holds[#holds + 1] = key
      holds[#holds + 1] = string.format('%d %d', amount, expiry)
      seats[#seats + 1] = expiry
      seats[#seats + 1] = key
      local field, seat = found[i + 1] and asked[i + 1], 2
      while field do
        redis.call('HSET', LEDGER, field, string.format('0 %d', expiry))
        seat = seat + 1
        field = key .. ' ' .. seat
        if redis.call('HEXISTS', LEDGER, field) == 0 then field = nil end
      end
    else
      lost[#lost + 1] = key
    end
  end
  if #holds > 0 then redis.call('HSET', LEDGER, unpack(holds)) end
  if #seats > 0 and SEAT_EXPIRIES then redis.call('ZADD', SEAT_EXPIRIES, 'XX', 'GT', unpack(seats)) end
end

if expiry < soonest then redis.call('HSET', LEDGER, '', string.format('%d %d', total, expiry)) end
return lost
