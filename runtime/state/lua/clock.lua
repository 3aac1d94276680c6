-- clock.lua: precedes every script of an epoch (hash).
-- Return Redis's own clock in milliseconds without its jumps: a clock set back would prolong every hold, and a clock
-- set forward would end them all at once. A living fleet calls every second, so a longer silence is a pause of Redis or
-- a jump, and counts as no time.
local function read_clock(epoch, seen, jumped)
  local time = redis.call('TIME')
  local clock = time[1] * 1000 + math.floor(time[2] / 1000)
  seen, jumped = tonumber(seen or clock - SEEN_MS), tonumber(jumped or 0)
  if clock < seen or clock > seen + LONGEST_SILENCE_MS then
    jumped = jumped + clock - seen
    redis.call('HSET', epoch, 'seen', clock, 'jumped', jumped)
  elseif clock >= seen + SEEN_MS then
    redis.call('HSET', epoch, 'seen', clock)
  end
  return clock - jumped
end
