-- uses: base bucket
-- takes: estimated# used# limit#
-- gives: OK now#
--
-- A request was admitted with an estimate, and used something else: the level is put right. It may fall
-- below 0 of `limit`, tokens a minute; what it rises above a minute's worth is cut when it is read.
--
-- KEYS  1 provider:<name> hash

local bad = misfit(KEYS[1], 'hash')
if bad then return bad end
local now = now_ms()
local settled = level(KEYS[1], 'tokens', limit, now) + (estimated - used) * MINUTE
keep_level(KEYS[1], 'tokens', settled, now)
return {'OK', now}
