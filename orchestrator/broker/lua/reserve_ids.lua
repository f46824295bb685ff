-- uses: base
-- takes: count#
-- gives: OK first# now# | UNKNOWN
--
-- Hands out agent ids of a tree. A number lost with the worker that took it stays unused. One that Redis has
-- forgotten may be handed out again: the first commit to use it has it.
--
-- KEYS  1 agents:<tree> hash

local bad = misfit(KEYS[1], 'hash')
if bad then return bad end
if not redis.call('HGET', KEYS[1], 'root') then return {'UNKNOWN'} end
-- Agent 0 is the root, which took no reservation.
local last = num(redis.call('HGET', KEYS[1], 'last_agent'))
redis.call('HSET', KEYS[1], 'last_agent', text(last + count))
return {'OK', last + 1, now_ms()}
