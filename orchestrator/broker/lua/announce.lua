-- uses: base
-- takes: session
-- gives: OK now# known~
--
-- A client will store what a root session begins with, and create the session then. The first time counts, and
-- is `known`: `create` asks for that very announcement, as a copy of it may arrive when the first was given up.
--
-- KEYS  1 unborn zset      session -> when it was announced; once it is given up, less than 0: since when

local bad = misfit(KEYS[1], 'zset')
if bad then return bad end
local now = now_ms()
redis.call('ZADD', KEYS[1], 'NX', text(now), session)
return {'OK', now, num(redis.call('ZSCORE', KEYS[1], session))}
