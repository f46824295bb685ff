-- Shared by every script that can wake a session: where it stands, and how it becomes due.
-- A pool is {name, due, leases, ready, clock}: its label and the shard's four keys of it.

local function pool_misfit(pool)
  return misfit(pool.due, 'zset') or misfit(pool.leases, 'zset')
    or misfit(pool.ready, 'stream') or misfit(pool.clock, 'string')
end

local function fixed_pool(name, first)
  return {name = name, due = KEYS[first], leases = KEYS[first + 1], ready = KEYS[first + 2], clock = KEYS[first + 3]}
end

-- Start-time fair queueing: trees take turns, whatever the number of sessions of each.
-- A tree's next turn comes one after its last, but never before the pool's clock, so that
-- a tree that was idle neither saves up turns nor waits for those who were not.
local function make_due(session, pool, agents)
  local turn = 'turn:' .. pool.name
  local order = math.max(num(redis.call('GET', pool.clock)), num(redis.call('HGET', agents, turn))) + 1
  redis.call('ZADD', pool.due, text(order), session)
  redis.call('HSET', agents, turn, text(order))
  redis.call('XADD', pool.ready, 'MAXLEN', '~', 256, '*', 's', session)
  notify_changed(session)
end

local function is_held(session, pool)
  return redis.call('ZSCORE', pool.leases, session) ~= false
end

-- For a session that was given something. In due or held: somebody will look. Quarantined: nobody may.
local function wake_if_parked(session, pool, agents, box, held)
  if box.quarantined == '1' or held or redis.call('ZSCORE', pool.due, session) then return end
  make_due(session, pool, agents)
end
