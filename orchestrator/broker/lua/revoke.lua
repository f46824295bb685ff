-- uses: base wake
-- revoke(session, pool, tree) -> OK epoch now | UNKNOWN | MOVED tree pool | CORRUPT key why
--
-- Takes the claim from whoever holds it: for a holder that renews but does not act. The epoch
-- grows, nobody owns the session, and it is due if it was held. Also readmits a quarantined one.
--
-- KEYS  1 session hash   2 agents hash   3 due zset   4 leases zset   5 ready stream   6 clock string

local session, pool_name, tree = take(), take(), take()
local pool = fixed_pool(pool_name, 3)
all_taken()
local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'hash') or pool_misfit(pool)
if bad then return bad end
local s = redis.call('HMGET', KEYS[1], 'tree', 'pool', 'epoch', 'quarantined')
if not s[1] then return {'UNKNOWN'} end
if s[1] ~= tree or s[2] ~= pool_name then return {'MOVED', s[1], s[2]} end
local epoch = num(s[3]) + 1
local owed = is_held(session, pool) or s[4] == '1'

redis.call('HSET', KEYS[1], 'epoch', text(epoch), 'owner', '', 'claim', '', 'quarantined', '', 'tries', '0')
redis.call('ZREM', pool.leases, session)
if owed then make_due(session, pool, KEYS[2]) end
return {'OK', epoch, now_ms()}
