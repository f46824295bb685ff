-- uses: base
-- takes: worker read
-- gives: OK now# told(session pool)
--
-- A worker has no room, or leaves: it is told alone of nothing more. It hears what it was told behind the entry that
-- it has read last.
--
-- KEYS  1 near:<worker> stream   2… open:<pool> zset of each pool

local bad = misfit(KEYS[1], 'stream')
for at = 2, #KEYS do bad = bad or misfit(KEYS[at], 'zset') end
if bad then return bad end
local told = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. read, '+')) do
  told[#told + 1], told[#told + 2] = entry[2][2], entry[2][4]
end
redis.call('DEL', KEYS[1])
for at = 2, #KEYS do redis.call('ZREM', KEYS[at], worker) end
return {'OK', now_ms(), told}
