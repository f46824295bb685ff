-- uses: base
-- takes: worker claim epoch seq# manifest
-- gives: OK now# | FENCED epoch# | REFUSED reason
--
-- The entries through seq are safe in archive segments, which the manifest names: they leave Redis.
-- Only what a snapshot covers may go, or a load would find neither.
--
-- KEYS  1 session hash   2 rollout stream

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'stream')
if bad then return bad end
local s = fields_of(KEYS[1], {'owner', 'claim', 'epoch', 'snapshot_seq', 'sealed_seq'})
if s.owner ~= worker or s.claim ~= claim or s.epoch ~= epoch then return {'FENCED', num(s.epoch)} end
if seq > num(s.snapshot_seq) then return {'REFUSED', 'no snapshot covers it'} end
if seq < num(s.sealed_seq) then return {'REFUSED', 'sealed further already'} end

redis.call('HSET', KEYS[1], 'sealed_seq', text(seq), 'manifest', manifest)
redis.call('XTRIM', KEYS[2], 'MINID', '=', text(seq + 1) .. '-0')
return {'OK', now_ms()}
