-- uses: base
-- delete(session, approval fields(1), timer members(1)) -> OK now | HELD worker | CORRUPT key why
--
-- Retention: every key of one session goes. Refused while a worker holds it.
--
-- KEYS  1 session hash   2 due zset   3 leases zset   4 sessions zset   5 timers zset   6 approvals hash
--       7 timer hash     8… any further key of the session: deleted whatever it is

local session = take()
local approvals, timers = take_list(1), take_list(1)
all_taken()
local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset') or misfit(KEYS[3], 'zset')
  or misfit(KEYS[4], 'zset') or misfit(KEYS[5], 'zset') or misfit(KEYS[6], 'hash')
if bad then return bad end
if redis.call('ZSCORE', KEYS[3], session) then return {'HELD', redis.call('HGET', KEYS[1], 'owner') or ''} end

for i = 2, 4 do redis.call('ZREM', KEYS[i], session) end
for _, row in ipairs(timers) do redis.call('ZREM', KEYS[5], row[1]) end
for _, row in ipairs(approvals) do redis.call('HDEL', KEYS[6], row[1]) end
redis.call('DEL', KEYS[1])
for i = 7, #KEYS do redis.call('DEL', KEYS[i]) end
return {'OK', now_ms()}
