-- uses: base fleet wake
-- takes: session pool_name worker claim epoch seq head
-- gives: OK parks? now# | FENCED epoch#
--
-- Gives a claim back without a commit. With the log's end as its holder knows it, the session is parked if
-- the log ends there and its queue is read to the end; otherwise it is due at once. The end is compared
-- because Redis may have gone back behind a commit that it had answered: that what the log says *there* owes
-- nothing is not what the holder has seen. A release sent twice finds the claim gone: FENCED, and just as well.
-- Of a claim that was revoked it says that nothing runs any more: the next holder need not wait. That claim
-- ended with the epoch after its own; behind any other epoch the word comes too late.
--
-- KEYS  1 session hash   2 agents hash   3 due zset   4 leases zset   5 ready stream   6 clock string
--       7 released stream

local pool = fixed_pool(pool_name, 3)
local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'hash') or misfit(KEYS[7], 'stream') or pool_misfit(pool)
if bad then return bad end
local s = fields_of(KEYS[1], {'owner', 'claim', 'epoch', 'sq', 'cursor', 'revoked', 'seq', 'head'})
local revoked = s.owner == worker and s.revoked == claim and num(s.epoch) == num(epoch) + 1
if not revoked and (s.owner ~= worker or s.claim ~= claim or s.epoch ~= epoch) then return {'FENCED', num(s.epoch)} end
local parks = s.seq == seq and s.head == head and num(s.sq) == num(s.cursor)

redis.call('HSET', KEYS[1], 'owner', '', 'claim', '')
if revoked then redis.call('HDEL', KEYS[1], 'revoked') end
redis.call('ZREM', pool.leases, session)
if not parks then make_due(session, pool, KEYS[2]) end
notify_released(KEYS[7], session)
return {'OK', parks and 1 or 0, now_ms()}
