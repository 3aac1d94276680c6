-- list_routers.lua: return the ids of the routers that hear of their grants now.
-- ARGV    channel prefix of routers.
local found = redis.call('PUBSUB', 'CHANNELS', ARGV[1] .. '*')
for i, channel in ipairs(found) do found[i] = string.sub(channel, #ARGV[1] + 1) end
return found
