-- uses: base
-- takes: tree seen# again#
-- gives: OK now# | CHANGED
--
-- Upkeep has looked at a tree whose time in the set was `seen`: it is to look again at `again`, or, if that is 0,
-- when a script puts the tree there anew. CHANGED if one has done so meanwhile, and nothing is written.
--
-- KEYS  1 to_archive zset, or to_delete zset

local bad = misfit(KEYS[1], 'zset')
if bad then return bad end
if tonumber(redis.call('ZSCORE', KEYS[1], tree) or '') ~= seen then return {'CHANGED'} end
if again == 0 then
  redis.call('ZREM', KEYS[1], tree)
else
  redis.call('ZADD', KEYS[1], text(math.max(again, seen + 1)), tree)
end
return {'OK', now_ms()}
