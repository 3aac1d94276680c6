-- tenants.lua: precedes the scripts that use tenants' turns or seats.
-- KEYS[7] seats (hash): from a request key to what its seats count, KEYS[8] when each request's seats expire (zset),
-- KEYS[9] the sums of seats (hash) by tenant, KEYS[10] lanes (zset, ordered by its members: tenant, class and place,
-- where a place is the score and the request key), KEYS[11] turns (zset): the first place of each lane, scored by class
-- and by what its tenant holds. The lanes of the tenant '\1' have the requests that take no turns.
-- A request key begins with its tenant, up to a slash.
local TENANTS, LANES, TURNS = KEYS[9], KEYS[10], KEYS[11]

local function tenant_of(key)
  return string.match(key, '^([^/]*)/') or ''
end
