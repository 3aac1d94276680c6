-- delete_file.lua: remove a file that no unfinished batch reads or writes.
-- KEYS[1] the file (hash)   KEYS[2] its pieces (list)   KEYS[3] bytes stored, by tenant (hash)
-- KEYS[4] when what expires (zset)   KEYS[5], KEYS[6] the tenant's files (zsets)
-- ARGV    id, tenant.   Returns 1 deleted, 0 there is none, -1 a batch uses it, which also puts its expiry off.
if tonumber(redis.call('HGET', KEYS[1], 'uses') or 0) > 0 then
  redis.call('ZADD', KEYS[4], 'XX', now + 60000, ARGV[1])
  return -1
end
local bytes = redis.call('HGET', KEYS[1], 'bytes')
redis.call('ZREM', KEYS[4], ARGV[1])
if not bytes then return 0 end
if redis.call('HINCRBY', KEYS[3], 'tenant:' .. ARGV[2], -bytes) <= 0 then
  redis.call('HDEL', KEYS[3], 'tenant:' .. ARGV[2])
end
redis.call('HINCRBY', KEYS[3], 'all', -bytes)
redis.call('UNLINK', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[5], ARGV[1])
redis.call('ZREM', KEYS[6], ARGV[1])
return 1
