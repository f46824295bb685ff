-- uses: base
-- takes: worker ttl_ms#
-- gives: OK now# behind
--
-- A worker with room wants to be told alone of sessions that become due: of those that it had last, and in its
-- turn of others of its pools. It says so for ttl_ms. `behind`: after this entry of its stream it is told.
--
-- KEYS  1 near:<worker> stream   2… open:<pool> zset (worker -> how often it was told) of each pool

local bad = misfit(KEYS[1], 'stream')
for at = 2, #KEYS do bad = bad or misfit(KEYS[at], 'zset') end
if bad then return bad end
-- What an earlier process of its name left there would be an answer to nobody; its ids may lie in a time to come.
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('DEL', KEYS[1]) end
local behind = redis.call('XADD', KEYS[1], '*', 's', '', 'p', '')
redis.call('PEXPIRE', KEYS[1], text(ttl_ms))
-- It begins where the one stands that was told least often: it has no arrears to be given.
for at = 2, #KEYS do
  redis.call('ZADD', KEYS[at], 'NX', redis.call('ZRANGE', KEYS[at], 0, 0, 'WITHSCORES')[2] or '0', worker)
end
return {'OK', now_ms(), behind}
