-- end_batch.lua: end a batch whose lines all have a result, and publish the files with the results. The lines are
-- counted here: Redis may have lost results that it had acknowledged, and the caller would not know.
-- KEYS[1] the batch (hash)   KEYS[2] its lines that have a result (bitmap)   KEYS[3] batches to run (zset)
-- KEYS[4] its input (hash)   KEYS[5] when what expires (zset)   KEYS[6], KEYS[7] the tenant's files (zsets)
-- KEYS[8], KEYS[9] the files with results and with errors (hashes)
-- ARGV    id, fence, status, seconds that the results are kept, seconds that the batch is kept,
--         id of the file with results, its name, id of the file with errors, its name, tenant.
-- Returns 1, 0 if the caller does not hold the batch, or -1 if a line has no result.
if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[2] then return 0 end
if not redis.call('ZSCORE', KEYS[3], ARGV[1]) then return 1 end
if redis.call('BITCOUNT', KEYS[2]) < tonumber(redis.call('HGET', KEYS[1], 'total')) then return -1 end
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[1], 'status', ARGV[3], ARGV[3] .. '_at', wall)
redis.call('ZADD', KEYS[5], now + ARGV[5] * 1000, ARGV[1])
redis.call('HINCRBY', KEYS[4], 'uses', -1)
redis.call('UNLINK', KEYS[2])
for i, field in ipairs({'output_file_id', 'error_file_id'}) do
  local id, file = ARGV[4 + 2 * i], KEYS[7 + i]
  if redis.call('EXISTS', file) == 1 then
    redis.call('HSET', file, 'tenant', ARGV[10], 'filename', ARGV[5 + 2 * i], 'purpose', 'batch_output',
      'created_at', wall, 'expires_at', wall + ARGV[4], 'is_ready', 1)
    redis.call('ZADD', KEYS[5], now + ARGV[4] * 1000, id)
    redis.call('ZADD', KEYS[6], 0, id)
    redis.call('ZADD', KEYS[7], 0, id)
    redis.call('HSET', KEYS[1], field, id)
  end
end
return 1
