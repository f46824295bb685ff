-- uses: base
-- takes: worker claim epoch seq# state
-- gives: OK now# | FENCED epoch# | REFUSED reason
--
-- Stores the folded state of the session as of seq. It never goes back, and never ahead of the log.
--
-- KEYS  1 session hash   2 snapshot string

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'string')
if bad then return bad end
local s = fields_of(KEYS[1], {'owner', 'claim', 'epoch', 'seq', 'snapshot_seq'})
if s.owner ~= worker or s.claim ~= claim or s.epoch ~= epoch then return {'FENCED', num(s.epoch)} end
if seq > num(s.seq) then return {'REFUSED', 'ahead'} end
if seq < num(s.snapshot_seq) then return {'REFUSED', 'older'} end

redis.call('HSET', KEYS[1], 'snapshot_seq', text(seq))
redis.call('SET', KEYS[2], state)
return {'OK', now_ms()}
