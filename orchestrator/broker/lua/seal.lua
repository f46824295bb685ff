-- uses: base
-- seal(worker, claim, epoch, seq, manifest) -> OK now | FENCED epoch | REFUSED why | CORRUPT key why
--
-- The entries through seq are safe in archive segments, which the manifest names: they leave Redis.
-- Only what a snapshot covers may go, or a load would find neither.
--
-- KEYS  1 session hash   2 rollout stream

local worker, claim, epoch, seq, manifest = take(), take(), take(), take_number(), take()
all_taken()
local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'stream')
if bad then return bad end
local s = redis.call('HMGET', KEYS[1], 'owner', 'claim', 'epoch', 'snapshot_seq', 'sealed_seq')
if s[1] ~= worker or s[2] ~= claim or s[3] ~= epoch then return {'FENCED', num(s[3])} end
if seq > num(s[4]) then return {'REFUSED', 'no snapshot covers it'} end
if seq < num(s[5]) then return {'REFUSED', 'sealed further already'} end

redis.call('HSET', KEYS[1], 'sealed_seq', text(seq), 'manifest', manifest)
redis.call('XTRIM', KEYS[2], 'MINID', '=', text(seq + 1) .. '-0')
return {'OK', now_ms()}
