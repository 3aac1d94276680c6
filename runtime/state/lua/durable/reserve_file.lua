-- reserve_file.lua: enter a file whose content follows. It expires soon unless publish_file.lua is called.
-- KEYS[1] the file (hash)   KEYS[2] bytes stored, by tenant (hash)   KEYS[3] when what expires (zset)
-- ARGV    id, tenant, bytes, most bytes of the tenant, most bytes of all, ms until it expires, fields of the file ....
-- Returns the bytes that tenant and all have without the file, if one of them would have too many; else nothing.
if redis.call('EXISTS', KEYS[1]) == 1 then return {} end
local own = tonumber(redis.call('HGET', KEYS[2], 'tenant:' .. ARGV[2]) or 0)
local all = tonumber(redis.call('HGET', KEYS[2], 'all') or 0)
if own + ARGV[3] > tonumber(ARGV[4]) or all + ARGV[3] > tonumber(ARGV[5]) then return {own, all} end
redis.call('HSET', KEYS[1], 'tenant', ARGV[2], 'bytes', ARGV[3], 'created_at', wall, unpack(ARGV, 7))
redis.call('HINCRBY', KEYS[2], 'tenant:' .. ARGV[2], ARGV[3])
redis.call('HINCRBY', KEYS[2], 'all', ARGV[3])
redis.call('ZADD', KEYS[3], now + ARGV[6], ARGV[1])
return {}
