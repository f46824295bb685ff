-- uses: base
-- takes: session
-- announce(…) -> OK now | CORRUPT key why
--
-- A client will store what a root session begins with, and create the session then. The first time counts.
--
-- KEYS  1 unborn zset      session -> when it was announced, 0 once it is given up

local bad = misfit(KEYS[1], 'zset')
if bad then return bad end
local now = now_ms()
redis.call('ZADD', KEYS[1], 'NX', text(now), session)
return {'OK', now}
