-- uses: base
-- takes: worker result kept_ms#
-- gives: OK GONE now#
--
-- Leaves a job's result for its asker, for kept_ms. GONE: nobody waits for it any more.
--
-- KEYS  1 job hash

local bad = misfit(KEYS[1], 'hash')
if bad then return bad end
local now = now_ms()
local found = fields_of(KEYS[1], {'state', 'worker'})
if found.worker == worker and found.state == 'done' then return {'OK', now} end
if found.worker ~= worker or found.state ~= 'taken' then return {'GONE', now} end
redis.call('HSET', KEYS[1], 'state', 'done', 'result', result)
redis.call('HDEL', KEYS[1], 'payload')
redis.call('PEXPIRE', KEYS[1], text(kept_ms))
return {'OK', now}
