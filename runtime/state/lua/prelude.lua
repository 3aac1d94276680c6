-- prelude.lua: precedes every other script. It takes the first key, the epoch (hash), and the first argument, the
-- epoch that the caller has entered, and refuses a call of another epoch.
local EPOCH = table.remove(KEYS, 1)
local epoch, seen, jumped = unpack(redis.call('HMGET', EPOCH, 'id', 'seen', 'jumped'))
if epoch ~= table.remove(ARGV, 1) then
  return redis.error_reply('EPOCH Redis has forgotten what it held')
end
local now = read_clock(EPOCH, seen, jumped)
