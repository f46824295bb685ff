-- uses: base
-- snapshot(worker, claim, epoch, seq, state) -> OK now | FENCED epoch | REFUSED why | CORRUPT key why
--
-- Stores the folded state of the session as of seq. It never goes back, and never ahead of the log.
--
-- KEYS  1 session hash   2 snapshot string

local worker, claim, epoch, seq, state = take(), take(), take(), take_number(), take()
all_taken()
local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'string')
if bad then return bad end
local s = redis.call('HMGET', KEYS[1], 'owner', 'claim', 'epoch', 'seq', 'snapshot_seq')
if s[1] ~= worker or s[2] ~= claim or s[3] ~= epoch then return {'FENCED', num(s[3])} end
if seq > num(s[4]) then return {'REFUSED', 'ahead'} end
if seq < num(s[5]) then return {'REFUSED', 'older'} end

redis.call('HSET', KEYS[1], 'snapshot_seq', text(seq))
redis.call('SET', KEYS[2], state)
return {'OK', now_ms()}
