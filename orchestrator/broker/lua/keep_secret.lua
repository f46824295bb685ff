-- uses: base
-- takes: name value most# ttl_ms#
-- keep_secret(…) -> OK now | SECRETS n | CORRUPT key why
--
-- Sets apart the texts of an answer that came in clear, before the commit that decides it. Twice is as good as once.
--
-- KEYS  1 secrets hash    name -> value

local bad = misfit(KEYS[1], 'hash')
if bad then return bad end
if redis.call('HEXISTS', KEYS[1], name) == 0 and #redis.call('HKEYS', KEYS[1]) >= most then return {'SECRETS', most} end
redis.call('HSET', KEYS[1], name, value)
redis.call('PEXPIRE', KEYS[1], text(ttl_ms))
return {'OK', now_ms()}
