-- prelude.lua: precedes every other script of this folder. It takes the first key, the clock (hash; see clock.lua).
-- `now` is in milliseconds, by a clock that does not jump: by it things end. `wall` is the time of day in seconds, which
-- users are shown. Gateways look for batches every second, so the clock runs while there is one.
local CLOCK = table.remove(KEYS, 1)
local now = read_clock(CLOCK, unpack(redis.call('HMGET', CLOCK, 'seen', 'jumped')))
local wall = unpack(redis.call('TIME'))
