-- grant.lua: give a worker's free capacity to the head of the queue, as often as both last. Milliseconds.
-- KEYS[1..6] as line.lua, KEYS[7] the worker's credits, KEYS[8..] leases of the decode workers (ledgers)
-- ARGV    worker_key, limit_tokens, most grants, calling router, channel prefix of routers, then num_blocks and
--         max_seqs of each decode worker.
-- Returns the caller's request keys that were granted; the other routers are told over their channels.
-- A head that fits nowhere waits and is not passed: what is behind it may be granted only after it.
-- Nor is anything granted while peers have yet to enter what they hold (see enter.lua).
local CREDITS, FIRST_ROOM = KEYS[7], 8
return_expired()
if tonumber(redis.call('HGET', EPOCH, 'quiet_until') or 0) > now then return {} end

local taken = {}

-- The index of the first decode worker with room, or nil. Ledgers are read only as far as needed.
local function find_room(blocks)
  for i = FIRST_ROOM, #KEYS do
    local mine = taken[i] or {blocks = 0, seqs = 0}
    local limits = 6 + (i - FIRST_ROOM) * 2
    local leased, seqs = held(KEYS[i])
    if leased + mine.blocks + blocks <= tonumber(ARGV[limits]) and seqs + mine.seqs < tonumber(ARGV[limits + 1]) then
      return i
    end
  end
  return nil
end

local function take_room(i, blocks)
  taken[i] = taken[i] or {blocks = 0, seqs = 0}
  taken[i].blocks, taken[i].seqs = taken[i].blocks + blocks, taken[i].seqs + 1
end

-- False when nobody hears: a router that is gone gets no grants, and costs the others none of theirs.
local function tell(router, key)
  return router == ARGV[4] or redis.call('PUBLISH', ARGV[5] .. router, ARGV[1] .. ' ' .. key) > 0
end

local granted, left = {}, tonumber(ARGV[3])
local bound = held(CREDITS)
while left > 0 and bound < tonumber(ARGV[2]) do
  local head = redis.call('ZRANGE', QUEUE, 0, 0)[1]
  if not head then break end
  local entry = read_entry(head)
  local room = find_room(entry.blocks)
  if not room then break end
  leave_line(head, entry)
  if tell(entry.router, head) then
    take_room(room, entry.blocks)
    left = left - 1
    entry.worker = ARGV[1]
    write_entry(head, entry)
    redis.call('ZADD', GRANTS, now + GRANT_TTL_MS, head)
    hold(CREDITS, head, entry.tokens, now + GRANT_TTL_MS)
    bound = bound + entry.tokens
    if entry.router == ARGV[4] then granted[#granted + 1] = head end
  else
    redis.call('HDEL', ENTRIES, head)
  end
end
return granted
