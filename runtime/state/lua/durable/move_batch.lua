-- move_batch.lua: change a batch's status, once, unless it has ended or is being ended.
-- KEYS[1] the batch (hash)
-- ARGV    the new status, fence or '' for whoever asks, the statuses that it may have now ....   Returns 1, or 0.
local status, fence = unpack(redis.call('HMGET', KEYS[1], 'status', 'fence'))
if ARGV[2] ~= '' and fence ~= ARGV[2] then return 0 end
if status == ARGV[1] then return 1 end
for i = 3, #ARGV do
  if status == ARGV[i] then
    redis.call('HSET', KEYS[1], 'status', ARGV[1], ARGV[1] .. '_at', wall)
    return 1
  end
end
return 0
