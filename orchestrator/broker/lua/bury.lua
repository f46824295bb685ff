-- uses: base fleet wake
-- takes: session pool_name worker claim epoch most_tries# pause_ms#
-- gives: OK now# | LEFT now# | FENCED epoch#
--
-- Gives a claim back for its worker, which has died: the session is due, whatever its log owes. It is said behind the
-- proof that nothing runs which that worker started. Of a claim that was revoked it is the word that `release`
-- waits for. Sent twice, or late, it finds another claim, or none: FENCED.
--
-- A session that kills its workers must not kill the next one at once. LEFT, and the lease is waited for: if it was claimed
-- more than most_tries times without progress, or if it was given back like this within the last pause_ms.
--
-- KEYS  1 session hash   2 agents hash   3 due zset   4 leases zset   5 ready stream   6 clock string
--       7 released stream   8 changed stream

local pool = fixed_pool(pool_name, 3)
local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'hash') or misfit(KEYS[7], 'stream') or pool_misfit(pool)
  or tell_changes(KEYS[8])
if bad then return bad end
local s = fields_of(KEYS[1], {'owner', 'claim', 'epoch', 'revoked', 'tries', 'buried_ms'})
local revoked = s.owner == worker and s.revoked == claim and num(s.epoch) == num(epoch) + 1
if not revoked and (s.owner ~= worker or s.claim ~= claim or s.epoch ~= epoch) then return {'FENCED', num(s.epoch)} end
local now = now_ms()
local since_ms = now - num(s.buried_ms)
-- A time ahead of now is of before the clock was set back.
if num(s.tries) > most_tries or since_ms >= 0 and since_ms < pause_ms then return {'LEFT', now} end

redis.call('HSET', KEYS[1], 'owner', '', 'claim', '', 'buried_ms', text(now))
if revoked then redis.call('HDEL', KEYS[1], 'revoked') end
redis.call('ZREM', pool.leases, session)
make_due(session, pool, KEYS[2])
notify_released(KEYS[7], session)
return {'OK', now}
