-- find_prefix.lua: look up which blocks of a prompt are in each of some sets.
-- KEYS    prefixes of workers by tier (sets)
-- ARGV    hashes of blocks; `unpack` takes as many as one lookup has.
-- Returns a text for each set, with a 1 for each hash in it and a 0 for each other one.
local found = {}
for place, set in ipairs(KEYS) do
  found[place] = table.concat(redis.call('SMISMEMBER', set, unpack(ARGV)))
end
return found
