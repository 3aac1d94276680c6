-- add_demand.lua: add what was asked of a router to the present slot of time.
-- KEYS[1] slots (hash): from a place in a ring to `slot number number ...`
-- ARGV    the length of a slot in milliseconds, the slots of the ring, and the numbers to add.
local slot = math.floor(now / ARGV[1])
local place = slot % ARGV[2]
local kept = {}
for word in string.gmatch(redis.call('HGET', KEYS[1], place) or '', '%S+') do kept[#kept + 1] = word end
local is_same = tonumber(kept[1]) == slot and #kept == #ARGV - 1
local sums = {string.format('%d', slot)}
for i = 3, #ARGV do
  sums[i - 1] = string.format('%.17g', tonumber(ARGV[i]) + (is_same and tonumber(kept[i - 1]) or 0))
end
redis.call('HSET', KEYS[1], place, table.concat(sums, ' '))
redis.call('PEXPIRE', KEYS[1], ARGV[1] * ARGV[2])
