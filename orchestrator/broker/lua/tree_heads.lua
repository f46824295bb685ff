-- uses: base
-- gives: tree_seq# named(session) heads(seq% head!)
--
-- Where a tree's log and the logs of its sessions end, all at one moment: the numbers of the last entries, and
-- the sessions' chain values there. A session that is gone has no number. `named` are the sessions of the tree's
-- registry. Writes nothing.
--
-- KEYS  1 agents hash   2… each session's hash

local named = {}
local agents = redis.call('HGETALL', KEYS[1])
for i = 1, #agents, 2 do
  if string.sub(agents[i], 1, 2) == 's:' then named[#named + 1] = agents[i + 1] end
end
local heads = {}
for i = 2, #KEYS do
  local found = redis.call('HMGET', KEYS[i], 'seq', 'head')
  heads[#heads + 1] = found[1] or ''
  heads[#heads + 1] = found[2] or ''
end
return {tonumber(redis.call('HGET', KEYS[1], 'tree_seq') or 0), named, heads}
