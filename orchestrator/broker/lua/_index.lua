-- Shared by the scripts that keep the fleet's index: the roots of a shard that lists show, in one sorted set that is
-- read in the order of its members. Each has two of score 0, `<namespace>/<shelf>/<source>/<order>/<ms>/<session>`:
-- order r by its last use, c by its creation; shelf l for lists, a for what people have put away. Agents are
-- found by their trees, and what is ephemeral is in no list.

local INDEXED = {'namespace', 'source', 'shelved', 'ephemeral', 'recency', 'created_ms', 'agent_id'}

local function index_member(row, session, order, ms)
  local shelf = row.shelved == '1' and 'a' or 'l'
  return (row.namespace or '') .. '/' .. shelf .. '/' .. (row.source or 'cli') .. '/' .. order .. '/'
    .. string.format('%015.0f', num(ms)) .. '/' .. session
end

local function index_remove(index, row, session)
  if not row.recency then return end
  redis.call('ZREM', index, index_member(row, session, 'r', row.recency), index_member(row, session, 'c', row.created_ms))
end

-- Lists the session under its place of now, which its hash keeps: the next change has to find it.
local function index_add(index, row, session, key, recency)
  row.recency = text(recency)
  redis.call('HSET', key, 'recency', row.recency)
  redis.call('ZADD', index, '0', index_member(row, session, 'r', recency), '0', index_member(row, session, 'c', row.created_ms))
end

-- A session that was used: it moves to the front, and one of an earlier version gets into the index.
local function index_used(index, session, key, now)
  local row = fields_of(key, INDEXED)
  if row.agent_id ~= '0' or row.ephemeral == '1' then return end
  if not row.recency then return index_add(index, row, session, key, now) end
  if num(row.recency) >= now then return end
  redis.call('ZREM', index, index_member(row, session, 'r', row.recency))
  redis.call('HSET', key, 'recency', text(now))
  redis.call('ZADD', index, '0', index_member(row, session, 'r', now))
end
