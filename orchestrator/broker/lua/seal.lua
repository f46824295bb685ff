-- uses: base
-- takes: worker claim epoch seq# manifest whole#
-- gives: OK now# | FENCED epoch# | REFUSED reason
--
-- The entries through seq are safe in archive segments, which the manifest names: they leave Redis.
-- Only what a snapshot covers may go, or each load would read the segments. With whole = 1 that is meant: the
-- log goes to its end, and the snapshot with it.
--
-- KEYS  1 session hash   2 rollout stream   3 snapshot string

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'stream') or misfit(KEYS[3], 'string')
if bad then return bad end
local s = fields_of(KEYS[1], {'owner', 'claim', 'epoch', 'seq', 'snapshot_seq', 'sealed_seq'})
if s.owner ~= worker or s.claim ~= claim or s.epoch ~= epoch then return {'FENCED', num(s.epoch)} end
if whole == 1 and seq ~= num(s.seq) then return {'REFUSED', 'the log has another end'} end
if whole ~= 1 and seq > num(s.snapshot_seq) then return {'REFUSED', 'no snapshot covers it'} end
if seq < num(s.sealed_seq) then return {'REFUSED', 'sealed further already'} end

redis.call('HSET', KEYS[1], 'sealed_seq', text(seq), 'manifest', manifest)
if whole == 1 then
  redis.call('HSET', KEYS[1], 'snapshot_seq', '0')
  redis.call('DEL', KEYS[2], KEYS[3])
else
  redis.call('XTRIM', KEYS[2], 'MINID', '=', text(seq + 1) .. '-0')
end
return {'OK', now_ms()}
