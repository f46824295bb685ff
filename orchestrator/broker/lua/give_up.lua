-- uses: base
-- takes: session
-- give_up(…) -> OK now | BORN now | CORRUPT key why
--
-- What was stored for an announced session is about to be removed: from here on it cannot be created. One that
-- is there keeps it, and is announced no more.
--
-- KEYS  1 unborn zset      2 session hash

local bad = misfit(KEYS[1], 'zset') or misfit(KEYS[2], 'hash')
if bad then return bad end
local now = now_ms()
if redis.call('HEXISTS', KEYS[2], 'created') == 1 then
  redis.call('ZREM', KEYS[1], session)
  return {'BORN', now}
end
redis.call('ZADD', KEYS[1], '0', session)
return {'OK', now}
