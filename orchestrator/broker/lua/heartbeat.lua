-- uses: base
-- takes: worker state left? forget_ms#
-- gives: OK now# drains?
--
-- A worker is alive, and says how it is; or it has left, and is forgotten. Answers 1 if a person wants it to drain.
-- Those not heard from for forget_ms are forgotten.
--
-- KEYS  1 workers hash (worker -> state)   2 heard zset (worker -> last heartbeat, ms)
--       3 drains hash (worker that is to drain -> '')

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset') or misfit(KEYS[3], 'hash')
if bad then return bad end

local function forget(gone)
  redis.call('HDEL', KEYS[1], gone)
  redis.call('ZREM', KEYS[2], gone)
  redis.call('HDEL', KEYS[3], gone)
end

local now = now_ms()
local drains = redis.call('HEXISTS', KEYS[3], worker)
redis.call('HSET', KEYS[1], worker, state)
redis.call('ZADD', KEYS[2], text(now), worker)
if left then forget(worker) end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now - forget_ms), 'LIMIT', 0, 64)) do
  forget(gone)
end
return {'OK', now, drains}
