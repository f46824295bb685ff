-- uses: base
-- takes: count#
-- gives: now# members(member)
--
-- Whose deadlines have passed by Redis's clock, oldest first. Decides nothing: fire checks again.
--
-- KEYS  1 timers zset

local now = now_ms()
local members = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, count)
return {now, members}
