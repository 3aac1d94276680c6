-- record_lines.lua: record the results of lines that have none yet.
-- KEYS[1] the batch (hash)   KEYS[2] its lines that have a result (bitmap)   KEYS[3] the file for the results (hash)
-- KEYS[4] its pieces (list)  KEYS[5] bytes stored, by tenant (hash)
-- ARGV    fence, completed or failed, tenant, most bytes of the tenant, most bytes of all, then for each line its
--         number, its bytes, and the piece that holds it.
-- Returns 1 recorded, 0 the batch has ended or another holds it, -1 there is no room for the results.
local fence, status = unpack(redis.call('HMGET', KEYS[1], 'fence', 'status'))
if fence ~= ARGV[1] or status == 'completed' or status == 'expired' or status == 'cancelled' then return 0 end
local own = tonumber(redis.call('HGET', KEYS[5], 'tenant:' .. ARGV[3]) or 0)
local all = tonumber(redis.call('HGET', KEYS[5], 'all') or 0)
local bytes, lines = 0, 0
for i = 6, #ARGV, 3 do
  if redis.call('GETBIT', KEYS[2], ARGV[i]) == 0 then bytes = bytes + ARGV[i + 1] end
end
if own + bytes > tonumber(ARGV[4]) or all + bytes > tonumber(ARGV[5]) then return -1 end
bytes = 0
for i = 6, #ARGV, 3 do
  if redis.call('SETBIT', KEYS[2], ARGV[i], 1) == 0 then
    redis.call('RPUSH', KEYS[4], ARGV[i + 2])
    bytes, lines = bytes + ARGV[i + 1], lines + 1
  end
end
if lines > 0 then
  redis.call('HINCRBY', KEYS[1], ARGV[2], lines)
  redis.call('HINCRBY', KEYS[3], 'bytes', bytes)
  redis.call('HINCRBY', KEYS[5], 'tenant:' .. ARGV[3], bytes)
  redis.call('HINCRBY', KEYS[5], 'all', bytes)
end
return 1
