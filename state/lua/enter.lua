-- enter.lua: the epoch of what this server holds; where it holds nothing that can be trusted, a new one. Milliseconds.
-- KEYS[1] the epoch (hash)
-- ARGV    a name for a new epoch, the caller's last one or '', quiet_ms, pattern of all keys of the fleet.
-- Returns the epoch. A server's run id changes with each start and with a replica's promotion: what was loaded from
-- its disk, or came late from another, is cleared.
-- KEYS walks the whole server, once for each epoch: clearing must be one step with opening, lest somebody enters what
-- is then cleared, and what a former fleet left can be found by its names only. It takes milliseconds: there are a few
-- keys for each worker and each tenant, and whoever waits for it has found the server just back, or empty.
local time = redis.call('TIME')
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local epoch = redis.call('HGET', KEYS[1], 'id')
if not epoch or redis.call('HGET', KEYS[1], 'run_id') ~= run_id then
  for _, key in ipairs(redis.call('KEYS', ARGV[4])) do redis.call('UNLINK', key) end
  epoch = ARGV[1]
  redis.call('HSET', KEYS[1], 'id', epoch, 'run_id', run_id)
end
if ARGV[2] ~= '' and ARGV[2] ~= epoch then
  local now = time[1] * 1000 + math.floor(time[2] / 1000) - (redis.call('HGET', KEYS[1], 'jumped') or 0)
  redis.call('HSET', KEYS[1], 'quiet_until', now + ARGV[3])
end
return epoch
