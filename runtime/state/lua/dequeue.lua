-- dequeue.lua: take a request out of the queue, granted or not.
-- KEYS    as line.lua
-- ARGV    request_key.   Returns 1 if it was in the queue, else 0.
return_expired()
local entry = read_entry(ARGV[1])
if not entry then return 0 end
if entry.worker == '-' then leave_line(ARGV[1], entry) else redis.call('ZREM', GRANTS, ARGV[1]) end
return redis.call('HDEL', ENTRIES, ARGV[1])
