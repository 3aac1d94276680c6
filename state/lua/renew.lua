-- renew.lua: a credit or lease that is still held stays held. Milliseconds.
-- KEYS[1] the worker's credits or leases (hash)
-- ARGV    ttl_ms, request_key, ....   Returns how many were still held.
local renewed = 0
for i = 2, #ARGV do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  if value then
    redis.call('HSET', KEYS[1], ARGV[i], string.match(value, '^%d+') .. ' ' .. string.format('%d', now + ARGV[1]))
    renewed = renewed + 1
  end
end
return renewed
