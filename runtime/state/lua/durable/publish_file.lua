-- publish_file.lua: make a reserved file visible to its tenant.
-- KEYS[1] the file (hash)   KEYS[2] when what expires (zset)   KEYS[3], KEYS[4] the tenant's files (zsets)
-- KEYS[5] its pieces (list)
-- ARGV    id, seconds until it expires, its number of pieces, more fields of the file ....
-- Returns 1, 0 if the file has expired meanwhile, or -1 if Redis has lost a piece.
local created = redis.call('HGET', KEYS[1], 'created_at')
if not created then return 0 end
if redis.call('LLEN', KEYS[5]) < tonumber(ARGV[3]) then return -1 end
redis.call('HSET', KEYS[1], 'is_ready', 1, 'expires_at', created + ARGV[2], unpack(ARGV, 4))
redis.call('ZADD', KEYS[2], now + ARGV[2] * 1000, ARGV[1])
redis.call('ZADD', KEYS[3], 0, ARGV[1])
redis.call('ZADD', KEYS[4], 0, ARGV[1])
return 1
