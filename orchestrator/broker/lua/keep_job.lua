-- uses: base
-- takes: worker lease_ms# kept_ms#
-- gives: OK GONE now#
--
-- Says that the worker is at the job. GONE: its asker has given it up, and the worker ends what it began.
--
-- KEYS  1 job hash

local bad = misfit(KEYS[1], 'hash')
if bad then return bad end
local now = now_ms()
local found = fields_of(KEYS[1], {'state', 'worker'})
if found.state ~= 'taken' or found.worker ~= worker then return {'GONE', now} end
redis.call('HSET', KEYS[1], 'until', text(now + lease_ms))
redis.call('PEXPIRE', KEYS[1], text(kept_ms))
return {'OK', now}
