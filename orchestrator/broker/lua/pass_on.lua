-- uses: base fleet wake
-- takes: session pool_name
-- gives: OK NONE now#
--
-- The worker that alone was told of a session cannot take it: all are told, and nobody passes over it any more.
-- NONE if it is not due.
--
-- KEYS  1 session hash   2 due zset   3 leases zset   4 ready stream   5 clock string   of its pool

local pool = fixed_pool(pool_name, 2)
local bad = misfit(KEYS[1], 'hash') or pool_misfit(pool)
if bad then return bad end
local now = now_ms()
if not redis.call('ZSCORE', pool.due, session) then return {'NONE', now} end
redis.call('HDEL', KEYS[1], 'due_ms')
tell_all(session, pool)
return {'OK', now}
