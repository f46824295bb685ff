-- uses: base
-- takes: tree seen# texts#
-- gives: OK now# | CHANGED
--
-- The archive has proved that it has these large texts of a tree, whose sessions were all archived when upkeep
-- looked: they leave Redis. CHANGED if a session of the tree was brought back since, which gives the tree another
-- time in the set than the one that was seen: it needs them, and all of them stay. A session that is brought back
-- later puts back what it needs before that, and `restore` refuses to stand without it.
--
-- The tree's list of texts stays, so that `delete` knows of each that is put back meanwhile.
--
-- KEYS  1 to_archive zset   2… each text

if #KEYS ~= 1 + texts then error('MISCALL there are ' .. #KEYS .. ' keys') end
local bad = misfit(KEYS[1], 'zset')
for i = 2, #KEYS do bad = bad or misfit(KEYS[i], 'string') end
if bad then return bad end
if tonumber(redis.call('ZSCORE', KEYS[1], tree) or '') ~= seen then return {'CHANGED'} end
for i = 2, #KEYS do redis.call('DEL', KEYS[i]) end
return {'OK', now_ms()}
