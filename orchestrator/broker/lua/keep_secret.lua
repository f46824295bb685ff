-- uses: base
-- takes: n# name value most# ttl_ms#
-- gives: OK now# | SECRETS most#
--
-- Sets apart the texts of an answer that came in clear as entry n of a queue, before the commit that decides it. Behind
-- that commit it does nothing: a copy that comes late must not bring back what was dropped.
--
-- KEYS  1 session  hash    its cursor      2 secrets hash    name -> value

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'hash')
if bad then return bad end
if num(redis.call('HGET', KEYS[1], 'cursor')) >= n then return {'OK', now_ms()} end
if redis.call('HEXISTS', KEYS[2], name) == 0 and #redis.call('HKEYS', KEYS[2]) >= most then return {'SECRETS', most} end
redis.call('HSET', KEYS[2], name, value)
redis.call('PEXPIRE', KEYS[2], text(ttl_ms))
return {'OK', now_ms()}
