-- list_due.lua: return members of a zset whose time has come.
-- KEYS[1] the zset, scored by time in ms
-- ARGV    how many; how far ahead no time can lie, in ms, or '': what lies further is returned if nothing else is due.
local due = redis.call('ZRANGEBYSCORE', KEYS[1], 0, now, 'LIMIT', 0, ARGV[1])
if #due == 0 and ARGV[2] ~= '' then
  due = redis.call('ZRANGEBYSCORE', KEYS[1], now + ARGV[2], '+inf', 'LIMIT', 0, ARGV[1])
end
return due
