-- uses: base
-- takes: session
-- gives: OK now# known# | BORN now#
--
-- What was stored for an announced session is to be removed: from here on it cannot be created. One that is there
-- keeps it, and is announced no more. `since` is when it was given up first: a server that fails over may lose
-- that again, so nothing is removed at once.
--
-- KEYS  1 unborn zset      2 session hash

local bad = misfit(KEYS[1], 'zset') or misfit(KEYS[2], 'hash')
if bad then return bad end
local now = now_ms()
if redis.call('HEXISTS', KEYS[2], 'created') == 1 then
  redis.call('ZREM', KEYS[1], session)
  return {'BORN', now}
end
local known = tonumber(redis.call('ZSCORE', KEYS[1], session) or now)
if known > 0 then
  known = -now
  redis.call('ZADD', KEYS[1], text(known), session)
end
return {'OK', now, -known}
