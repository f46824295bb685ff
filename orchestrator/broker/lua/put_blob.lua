-- uses: base
-- takes: hash bytes unborn_ms#
-- gives: OK GONE now#
--
-- Stores content under its own hash, once, and lists it with its tree, which it lives as long as.
--
-- GONE: there is no such tree, and nothing was stored. What was sent before the tree was deleted may arrive
-- behind that, and nobody would ever delete it. With `unborn_ms` the tree is about to be created: until then, and
-- if that never happens, the content is kept for so long. What arrives behind its birth stores nothing: all that it
-- names was there then, and may have been redacted since.
--
-- KEYS  1 blob:<tree>:<hash> string   2 blobs:<tree> set   3 agents:<tree> hash

local bad = misfit(KEYS[1], 'string') or misfit(KEYS[2], 'set') or misfit(KEYS[3], 'hash')
if bad then return bad end
local born = redis.call('EXISTS', KEYS[3]) == 1
if not born and unborn_ms == 0 then return {'GONE', now_ms()} end
if born and unborn_ms > 0 then return {'OK', now_ms()} end
redis.call('SET', KEYS[1], bytes, 'NX')
redis.call('SADD', KEYS[2], hash)
for key = 1, 2 do
  if born then
    redis.call('PERSIST', KEYS[key])
  else
    redis.call('PEXPIRE', KEYS[key], text(unborn_ms))
  end
end
return {'OK', now_ms()}
