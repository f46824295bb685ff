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

-- Whether a session that is used now moves to the front. Its hash says so with `recency`, before the index does.
local function index_moves(row, now)
  return row.agent_id == '0' and row.ephemeral ~= '1' and num(row.recency) < now
end

-- Moves it there, from where `row` says that it was; one of an earlier version gets into the index.
local function index_move(index, row, session, now)
  local to = index_member(row, session, 'r', now)
  if not row.recency then
    redis.call('ZADD', index, '0', to, '0', index_member(row, session, 'c', row.created_ms))
  else
    redis.call('ZREM', index, index_member(row, session, 'r', row.recency))
    redis.call('ZADD', index, '0', to)
  end
end
