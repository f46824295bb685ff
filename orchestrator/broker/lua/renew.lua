-- uses: base
-- takes: session worker claim epoch lease_ms# reached#
-- gives: OK sq# now# | FENCED epoch#
--
-- Moves the expiry of a claim that still stands, even if it has run out: expiry only permits
-- another worker to claim, and none has. `reached` is the log's end by what its holder was answered: a log
-- that ends before it is of an earlier moment, and what the holder runs was never decided there.
--
-- KEYS  1 session hash   2 leases zset

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset')
if bad then return bad end
local s = fields_of(KEYS[1], {'owner', 'claim', 'epoch', 'sq', 'seq'})
if s.owner ~= worker or s.claim ~= claim or s.epoch ~= epoch or num(s.seq) < reached then return {'FENCED', num(s.epoch)} end
local now = now_ms()
redis.call('ZADD', KEYS[2], text(now + lease_ms), session)
return {'OK', num(s.sq), now}
