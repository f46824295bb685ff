-- uses: base
-- takes: job payload wait_ms# most#
-- gives: OK now# | FULL waiting#
--
-- Puts a job into a pool's queue, once. It stands there until a worker takes it, its asker settles it, or wait_ms are
-- over; then it is gone, and nobody has begun it.
--
-- KEYS  1 job hash   2 jobs zset (job -> until when it may be taken)   3 ready stream of the pool's jobs

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset') or misfit(KEYS[3], 'stream')
if bad then return bad end
local now = now_ms()
if redis.call('EXISTS', KEYS[1]) == 1 then return {'OK', now} end
local waiting = redis.call('ZCOUNT', KEYS[2], '(' .. text(now), '+inf')
if waiting >= most then return {'FULL', waiting} end
-- A full server refuses the first write, or none: it is one that needs memory.
redis.call('HSET', KEYS[1], 'state', 'queued', 'payload', payload)
redis.call('PEXPIRE', KEYS[1], text(wait_ms))
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now))
redis.call('ZADD', KEYS[2], text(now + wait_ms), job)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 256, '*', 'j', job)
return {'OK', now}
