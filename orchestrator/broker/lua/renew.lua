-- uses: base
-- renew(session, worker, claim, epoch, lease_ms, reached) -> OK tip now | FENCED epoch | CORRUPT key why
--
-- Moves the expiry of a claim that still stands, even if it has run out: expiry only permits
-- another worker to claim, and none has. `reached` is the log's end by what its holder was answered: a log
-- that ends before it is of an earlier moment, and what the holder runs was never decided there.
--
-- KEYS  1 session hash   2 leases zset

local session, worker, claim, epoch = take(), take(), take(), take()
local lease_ms, reached = take_number(), take_number()
all_taken()
local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset')
if bad then return bad end
local s = redis.call('HMGET', KEYS[1], 'owner', 'claim', 'epoch', 'sq', 'seq')
if s[1] ~= worker or s[2] ~= claim or s[3] ~= epoch or num(s[5]) < reached then return {'FENCED', num(s[3])} end
local now = now_ms()
redis.call('ZADD', KEYS[2], text(now + lease_ms), session)
return {'OK', num(s[4]), now}
