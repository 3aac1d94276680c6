-- append_piece.lua: keep the next piece of a reserved file.
-- KEYS[1] the file (hash)   KEYS[2] its pieces (list)
-- ARGV    the piece's place, from 0, and the piece.   Returns 1, 0 if the file has expired meanwhile, or -1 if Redis
--         has lost pieces before this one.
if redis.call('HEXISTS', KEYS[1], 'created_at') == 0 then return 0 end
local length, place = redis.call('LLEN', KEYS[2]), tonumber(ARGV[1])
if length < place then return -1 end
if length == place then redis.call('RPUSH', KEYS[2], ARGV[2]) end
return 1
