-- uses: base
-- timers_due(count) -> {now, {member, …}}
--
-- Whose deadlines have passed by Redis's clock, oldest first. Decides nothing: fire checks again.
--
-- KEYS  1 timers zset

local count = take_number()
all_taken()
local now = now_ms()
return {now, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, count)}
