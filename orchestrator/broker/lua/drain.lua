-- uses: base
-- takes: worker
-- gives: OK now# | UNHEARD
--
-- Asks a worker to drain: it hears so by the answer to its next heartbeat, and is forgotten when it has left.
--
-- KEYS  1 workers hash   2 heard zset   3 drains hash: as in heartbeat

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset') or misfit(KEYS[3], 'hash')
if bad then return bad end
if not redis.call('ZSCORE', KEYS[2], worker) then return {'UNHEARD'} end
redis.call('HSET', KEYS[3], worker, '')
return {'OK', now_ms()}
