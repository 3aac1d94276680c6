-- lease_at_once.lua: lease a newcomer's blocks without a place in the queue, if nothing waits there. Milliseconds.
-- KEYS[1..11] as line.lua, KEYS[12] credits of the worker that computes the prompt, KEYS[13] leases of the decode worker
-- ARGV    request_key, router_id, work_tokens, blocks, seats, share, limit_tokens, prompts up to which more are granted
--         whatever their tokens, num_blocks, max_seqs, ttl_ms
-- Returns 1 if credit and lease are held as after settle.lua, or 0, and then nothing is.
-- An expired grant returns to the queue with the next of its scripts, so it waits. Nothing is leased while peers have
-- yet to enter what they hold (see enter.lua).
local QUEUE, GRANTS, CREDITS, LEASES = KEYS[1], KEYS[3], KEYS[12], KEYS[13]
local key, blocks, seats, expiry = ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[5]), now + ARGV[11]
if redis.call('ZCARD', QUEUE) > 0 or redis.call('ZCOUNT', GRANTS, '-inf', now) > 0 then return 0 end
local quiet_until = redis.call('HGET', EPOCH, 'quiet_until')
if quiet_until and tonumber(quiet_until) > now then return 0 end
local min_prompts = tonumber(ARGV[8])
local is_bound = held(CREDITS) >= tonumber(ARGV[7])
if is_bound and (min_prompts == 0 or redis.call('HLEN', CREDITS) - 1 >= min_prompts) then return 0 end
if not has_room(LEASES, key, blocks, ARGV[9], seats, ARGV[10]) then return 0 end
redis.call('HSET', EPOCH, 'called:' .. ARGV[2], now) -- see grant.lua
hold(LEASES, key, blocks, expiry, seats)
hold(CREDITS, key, tonumber(ARGV[3]), expiry, 1)
take_seats(key, tonumber(ARGV[6]), expiry)
return 1
