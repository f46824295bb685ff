-- Shared by the scripts that keep the trees of a shard by the time at which upkeep is to look at them: `to_archive`
-- has each tree of which Redis holds a log, `to_delete` each whose root was closed. Upkeep reads a set from its
-- beginning and moves what is not due yet (`look_again`).

-- The tree rests from now on at the earliest. Its time only grows, so that a look tells whether it is out of date.
local function may_rest(set, tree, now)
  redis.call('ZADD', set, text(math.max(now, num(redis.call('ZSCORE', set, tree)) + 1)), tree)
end
