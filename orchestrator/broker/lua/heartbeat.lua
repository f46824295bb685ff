-- uses: base
-- takes: worker state forget_ms#
-- heartbeat(…) -> OK now | CORRUPT key why
--
-- A worker is alive, and says how it is. Those not heard from for forget_ms are forgotten.
--
-- KEYS  1 workers hash (worker -> state)   2 heard zset (worker -> last heartbeat, ms)

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset')
if bad then return bad end
local now = now_ms()
redis.call('HSET', KEYS[1], worker, state)
redis.call('ZADD', KEYS[2], text(now), worker)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now - forget_ms), 'LIMIT', 0, 64)) do
  redis.call('HDEL', KEYS[1], gone)
  redis.call('ZREM', KEYS[2], gone)
end
return {'OK', now}
