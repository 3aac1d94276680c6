-- prelude.lua: precedes every other script. It takes the first key, the epoch (hash), and the first argument, the
-- epoch that the caller has entered, and refuses a call of another epoch. `now` is Redis's own clock in milliseconds
-- without its jumps: a clock set back would prolong every hold, and a clock set forward would end them all at once.
-- A living fleet calls every second, so a longer silence is a pause of Redis or a jump, and counts as no time.
local EPOCH = table.remove(KEYS, 1)
local epoch, seen, jumped = unpack(redis.call('HMGET', EPOCH, 'id', 'seen', 'jumped'))
if epoch ~= table.remove(ARGV, 1) then
  return redis.error_reply('EPOCH Redis has forgotten what it held')
end
local time = redis.call('TIME')
local clock = time[1] * 1000 + math.floor(time[2] / 1000)
seen, jumped = tonumber(seen or clock - SEEN_MS), tonumber(jumped or 0)
if clock < seen or clock > seen + LONGEST_SILENCE_MS then
  jumped = jumped + clock - seen
  redis.call('HSET', EPOCH, 'seen', clock, 'jumped', jumped)
elseif clock >= seen + SEEN_MS then
  redis.call('HSET', EPOCH, 'seen', clock)
end
local now = clock - jumped
