-- uses: base
-- renew(session, worker, claim, epoch, lease_ms) -> OK tip now | FENCED epoch | CORRUPT key why
--
-- Moves the expiry of a claim that still stands, even if it has run out: expiry only permits
-- another worker to claim, and none has.
--
-- KEYS  1 session hash   2 leases zset

local session, worker, claim, epoch, lease_ms = take(), take(), take(), take(), take_number()
all_taken()
local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset')
if bad then return bad end
local s = redis.call('HMGET', KEYS[1], 'owner', 'claim', 'epoch', 'sq')
if s[1] ~= worker or s[2] ~= claim or s[3] ~= epoch then return {'FENCED', num(s[3])} end
local now = now_ms()
redis.call('ZADD', KEYS[2], text(now + lease_ms), session)
return {'OK', num(s[4]), now}
