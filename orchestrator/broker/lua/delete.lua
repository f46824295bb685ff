-- uses: base
-- delete(session, owed, epoch|'', approval fields(1), timer members(1)) -> OK now | HELD worker|'' | CORRUPT key why
--
-- Every key of one session goes. Refused while a worker holds it, and, unless `owed` is 1, while one is to
-- take it: what retention's session was given since somebody looked was acknowledged, and must not go unread.
-- Refused, too, under another epoch than the one that was seen: since then a worker has had it and let it go.
--
-- KEYS  1 session hash   2 due zset   3 leases zset   4 sessions zset   5 timers zset   6 approvals hash
--       7 timer hash     8… any further key of the session: deleted whatever it is

local session, owed_too, epoch = take(), take_number() == 1, take()
local approvals, timers = take_list(1), take_list(1)
all_taken()
local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset') or misfit(KEYS[3], 'zset')
  or misfit(KEYS[4], 'zset') or misfit(KEYS[5], 'zset') or misfit(KEYS[6], 'hash')
if bad then return bad end
local s = redis.call('HMGET', KEYS[1], 'owner', 'sq', 'cursor', 'epoch')
local owed = not owed_too and (redis.call('ZSCORE', KEYS[2], session) or num(s[2]) ~= num(s[3]))
local used = epoch ~= '' and num(s[4]) ~= num(epoch)
if owed or used or redis.call('ZSCORE', KEYS[3], session) then return {'HELD', s[1] or ''} end

for i = 2, 4 do redis.call('ZREM', KEYS[i], session) end
for _, row in ipairs(timers) do redis.call('ZREM', KEYS[5], row[1]) end
for _, row in ipairs(approvals) do redis.call('HDEL', KEYS[6], row[1]) end
redis.call('DEL', KEYS[1])
for i = 7, #KEYS do redis.call('DEL', KEYS[i]) end
return {'OK', now_ms()}
