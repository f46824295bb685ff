-- uses: base states
-- takes: sessions(session)
-- gives: OK states | UNKNOWN | UNLISTED
--
-- Counts the agents of a tree by their status, where the root's hash lacks that: an earlier version made the tree.
-- The sessions are those of the tree's registry, in the order of their numbers; with one that is missing nothing is
-- written. One that is gone is not counted.
--
-- KEYS  1 hash of the tree's root   2 agents hash   3… each session's hash

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'hash')
if bad then return bad end
local known = redis.call('HMGET', KEYS[1], 'tree', 'states')
if not known[1] then return {'UNKNOWN'} end
if known[2] then return {'OK', known[2]} end
local listed = {}
for _, session in ipairs(sessions) do listed[session] = true end
for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
  if string.sub(field, 1, 2) == 's:' and not listed[redis.call('HGET', KEYS[2], field)] then return {'UNLISTED'} end
end
local states, numbers = '', {}
for i, session in ipairs(sessions) do
  bad = misfit(KEYS[2 + i], 'hash')
  if bad then return bad end
  local s = fields_of(KEYS[2 + i], {'agent_id', 'parent', 'status'})
  if s.agent_id then
    numbers[session] = s.agent_id
    states = with_agent(states, s.agent_id, numbers[s.parent] or '', s.status)
  end
end

redis.call('HSET', KEYS[1], 'states', states)
return {'OK', states}
