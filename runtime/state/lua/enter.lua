-- enter.lua: return the server's epoch, or open a new one if its state cannot be trusted. Milliseconds.
-- KEYS[1] the epoch (hash)
-- ARGV    a name for a new epoch, the caller's last epoch or '', quiet_ms, pattern of all keys of the fleet, how long to
--         wait for a router, the name of the calling router or '', and those of the other routers that it saw last.
-- Returns the epoch. A server's run id changes with each start and with a replica's promotion: state that was loaded
-- from disk, or arrived late from another server, is cleared.
-- KEYS scans the whole server, once per epoch. Clearing and opening must be one step, or a client could enter state
-- that is then cleared; and keys of a former fleet can only be found by name. It takes milliseconds: there are a few
-- keys per worker and tenant, and the server has just come back or is empty.
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local epoch = redis.call('HGET', KEYS[1], 'id')
if not epoch or redis.call('HGET', KEYS[1], 'run_id') ~= run_id then
  for _, key in ipairs(redis.call('KEYS', ARGV[4])) do redis.call('UNLINK', key) end
  epoch = ARGV[1]
  redis.call('HSET', KEYS[1], 'id', epoch, 'run_id', run_id)
end
if ARGV[2] == '' then -- a process has started; of the ones before it, a field each would stay
  local now = read_clock(KEYS[1], unpack(redis.call('HMGET', KEYS[1], 'seen', 'jumped')))
  local flat = redis.call('HGETALL', KEYS[1])
  for i = 1, #flat, 2 do
    if string.find(flat[i], 'called:', 1, true) == 1 and now - flat[i + 1] > DAY_MS then
      redis.call('HDEL', KEYS[1], flat[i])
    end
  end
elseif ARGV[2] ~= epoch then
  local now = read_clock(KEYS[1], unpack(redis.call('HMGET', KEYS[1], 'seen', 'jumped')))
  for i = 7, #ARGV do
    if redis.call('HEXISTS', KEYS[1], 'here:' .. ARGV[i]) == 0 then
      redis.call('HSETNX', KEYS[1], 'awaited:' .. ARGV[i], now + ARGV[5])
    end
  end
  if ARGV[6] ~= '' then
    redis.call('HSET', KEYS[1], 'here:' .. ARGV[6], 1)
    redis.call('HDEL', KEYS[1], 'awaited:' .. ARGV[6])
  end
  local quiet_until, flat = now + ARGV[3], redis.call('HGETALL', KEYS[1])
  for i = 1, #flat, 2 do
    if string.find(flat[i], 'awaited:', 1, true) == 1 then quiet_until = math.max(quiet_until, flat[i + 1]) end
  end
  redis.call('HSET', KEYS[1], 'quiet_until', quiet_until)
end
return epoch
