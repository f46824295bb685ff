-- uses: base
-- takes: hash bytes
-- put_blob(…) -> OK now | CORRUPT key why
--
-- Stores content under its own hash, once, and lists it with its tree, which it lives as long as.
--
-- KEYS  1 blob:<tree>:<hash> string   2 blobs:<tree> set

local bad = misfit(KEYS[1], 'string') or misfit(KEYS[2], 'set')
if bad then return bad end
redis.call('SET', KEYS[1], bytes, 'NX')
redis.call('SADD', KEYS[2], hash)
return {'OK', now_ms()}
