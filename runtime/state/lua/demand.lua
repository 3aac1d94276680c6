-- demand.lua: return what was asked of all routers lately.
-- KEYS    as add_demand.lua
-- ARGV    the length of a slot in milliseconds.   Returns {the present slot, then every slot that is kept}.
local rows = redis.call('HVALS', KEYS[1])
table.insert(rows, 1, string.format('%d', math.floor(now / ARGV[1])))
return rows
