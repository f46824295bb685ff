-- Shared by every script that can wake a session: where it stands, and how it becomes due.
-- A pool is {name, due, leases, ready, clock, near}: its label, the shard's four keys of it, and what the keys of
-- shard 0 begin with, if this server has all shards and one worker alone may be told; else nothing, or no text.

local function pool_misfit(pool)
  return misfit(pool.due, 'zset') or misfit(pool.leases, 'zset')
    or misfit(pool.ready, 'stream') or misfit(pool.clock, 'string')
end

local function fixed_pool(name, first, near)
  return {name = name, due = KEYS[first], leases = KEYS[first + 1], ready = KEYS[first + 2], clock = KEYS[first + 3],
    near = near}
end

-- Start-time fair queueing: trees take turns, whatever the number of sessions of each.
-- A tree's next turn comes one after its last, but never before the pool's clock, so that
-- a tree that was idle neither saves up turns nor waits for those who were not.
local function give_turn(session, pool, agents)
  local turn = 'turn:' .. pool.name
  local order = math.max(num(redis.call('GET', pool.clock)), num(redis.call('HGET', agents, turn))) + 1
  redis.call('ZADD', pool.due, text(order), session)
  redis.call('HSET', agents, turn, text(order))
  notify_changed(session)
end

local function tell_all(session, pool)
  redis.call('XADD', pool.ready, 'MAXLEN', '~', 256, '*', 's', session)
end

-- Tells a worker alone, if it has said lately that it wants to be told. What its key may be is no reason to fail.
local function tells(worker, session, pool)
  local known, told = pcall(redis.call, 'XADD', pool.near .. 'near:' .. worker, 'NOMKSTREAM', 'MAXLEN', '~', 256, '*',
    's', session, 'p', pool.name)
  return known and told
end

-- Tells the worker that was told least often of those that have room; those that are gone are no more asked.
local function tells_one(session, pool)
  local open = pool.near .. 'open:' .. pool.name
  for _ = 1, 4 do
    local known, found = pcall(redis.call, 'ZRANGE', open, 0, 0, 'WITHSCORES')
    local worker = known and found[1]
    if not worker then return false end
    if tells(worker, session, pool) then
      redis.call('ZADD', open, text(found[2] + 1), worker)
      return true
    end
    redis.call('ZREM', open, worker)
  end
  return false
end

-- Due, and every worker of the pool is told.
local function make_due(session, pool, agents)
  give_turn(session, pool, agents)
  tell_all(session, pool)
end

-- Due, and one worker is told: the one that had it last, which still has its state, or else any that has room.
-- A `taker` is about to claim it behind this call, and needs not be told.
local function wake(session, pool, agents, box, now, taker)
  give_turn(session, pool, agents)
  if (pool.near or '') == '' then return tell_all(session, pool) end
  local last = box.last or ''
  if last ~= '' and (last == taker or tells(last, session, pool)) then
    redis.call('HSET', box.key, 'due_ms', text(now))
  elseif not tells_one(session, pool) then
    tell_all(session, pool)
  end
end

local function is_held(session, pool)
  return redis.call('ZSCORE', pool.leases, session) ~= false
end

-- For a session that was given something. In due or held: somebody will look. Quarantined: nobody may.
local function wake_if_parked(session, pool, agents, box, held, now, taker)
  if box.quarantined == '1' or held or redis.call('ZSCORE', pool.due, session) then return end
  wake(session, pool, agents, box, now, taker)
end
