-- prelude.lua: put before every other script. It takes the first key and the first argument, the epoch's (hash) and
-- the one the caller has entered, and refuses what was meant for another.
local EPOCH = table.remove(KEYS, 1)
if redis.call('HGET', EPOCH, 'id') ~= table.remove(ARGV, 1) then
  return redis.error_reply('EPOCH Redis has forgotten what it held')
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) -- milliseconds, Redis's own clock
