-- uses: base
-- takes: worker state left? forget_ms# silent_ms#
-- gives: OK now# drains? places(rank# count#)
--
-- A worker is alive, and says how it is; or it has left, and is forgotten. Answers 1 if a person wants it to drain.
-- Those not heard from for forget_ms are forgotten. Of each pool whose row of workers is among the keys it answers where
-- the worker stands there, in the order in which they came, and how many there are; those behind it in the row that were
-- not heard from for silent_ms leave it.
--
-- KEYS  1 workers hash (worker -> state)   2 heard zset (worker -> last heartbeat, ms)
--       3 drains hash (worker that is to drain -> '')
--       4… serving:<pool> zset (worker -> when it came) of each pool, where shards may be on several servers

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset') or misfit(KEYS[3], 'hash')
for at = 4, #KEYS do bad = bad or misfit(KEYS[at], 'zset') end
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

local MOST = 4
-- Takes those behind a rank out of a row, or of its beginning if that is the last, until one is heard from.
local function drop_silent(row, rank)
  local behind = redis.call('ZRANGE', row, text(rank + 1), text(rank + MOST))
  if #behind == 0 then behind = redis.call('ZRANGE', row, 0, MOST - 1) end
  for _, one in ipairs(behind) do
    local heard = redis.call('ZSCORE', KEYS[2], one)
    if heard and tonumber(heard) > now - silent_ms then return end
    redis.call('ZREM', row, one)
  end
end

local places = {}
for at = 4, #KEYS do
  if left then
    redis.call('ZREM', KEYS[at], worker)
  else
    redis.call('ZADD', KEYS[at], 'NX', text(now), worker)
    drop_silent(KEYS[at], redis.call('ZRANK', KEYS[at], worker))
    places[#places + 1] = redis.call('ZRANK', KEYS[at], worker)
    places[#places + 1] = redis.call('ZCARD', KEYS[at])
  end
end
return {'OK', now, drains, places}
