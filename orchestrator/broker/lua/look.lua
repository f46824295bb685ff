-- uses: base
-- takes: every_ms# worker near_ms# pools(name)
-- gives: now# jobs? claimable(shard# pool#) timed(shard#)
--
-- In which shards a session of which pool could be claimed, or a timer fired, and whether jobs wait: their places among
-- the keys and the pools, from 1 on. Where nothing is found, the pool's field says when, and for every_ms all who look
-- are answered the same. A session of which another worker was told alone in the last near_ms is for that one, see
-- `claim`. Decides nothing: peek, timers_due, claim, fire and take_job look again. A key of another
-- type counts as something that is found; who looks again is told of it.
--
-- KEYS  1 looked hash: pool -> when nothing was found   2… of each shard the timers zset, and of each pool its due:<pool>
--       and its leases:<pool> zset; then, if their shard is among these, of each pool its jobs zset

local MOST_WORDS = 4000
local now, width = now_ms(), 1 + 2 * #pools
local shards = math.floor((#KEYS - 1) / width)

local known, seen = pcall(redis.call, 'HMGET', KEYS[1], unpack(pools))
local asked = {}
for place in ipairs(pools) do
  local ago = now - num(known and seen[place])
  -- A clock that was put back makes it a time to come.
  if ago < 0 or ago >= every_ms then asked[#asked + 1] = place end
end
if #asked == 0 then return {now, 0, {}, {}} end

local function any_exists(keys)
  for first = 1, #keys, MOST_WORDS do
    if redis.call('EXISTS', unpack(keys, first, math.min(first + MOST_WORDS - 1, #keys))) > 0 then return true end
  end
  return false
end

local function is_there(key)
  return redis.call('EXISTS', key) == 1
end

-- Whether another worker alone was told of it, just now.
local function is_anothers(session_key)
  local read, told = pcall(redis.call, 'HMGET', session_key, 'last', 'due_ms')
  local ago = read and now - num(told[2]) or -1
  return ago >= 0 and ago < near_ms and (told[1] or '') ~= '' and told[1] ~= worker
end

local MOST_LEFT, left = 8, false
-- Whether a session is due that is not left to another worker; `left`: one that is.
local function has_due(key, pool)
  if near_ms == 0 then return is_there(key) end
  local read, first = pcall(redis.call, 'ZRANGE', key, 0, MOST_LEFT - 1)
  if not read then return true end
  local sessions = string.sub(key, 1, -#pool - 5) .. 'session:'
  for _, member in ipairs(first) do
    if not is_anothers(sessions .. member) then return true end
    left = true
  end
  return #first == MOST_LEFT
end

local function has_passed(key)
  local read, first = pcall(redis.call, 'ZRANGEBYSCORE', key, '-inf', text(now), 'LIMIT', 0, 1)
  return not read or #first > 0
end

-- The keys of all shards that stand there in each shard's row.
local function column(at)
  local keys = {}
  for shard = 1, shards do keys[shard] = KEYS[1 + (shard - 1) * width + at] end
  return keys
end

-- The shards whose key in a column is as asked. Each is looked at only where one of them is there.
local function where(at, holds, found)
  local keys = column(at)
  if not any_exists(keys) then return found end
  for shard, key in ipairs(keys) do found[shard] = found[shard] or holds(key) end
  return found
end

local claimable, timed, jobs = {}, {}, false
local function look_closely()
  local late = where(1, has_passed, {})
  for shard = 1, shards do
    if late[shard] then timed[#timed + 1] = shard end
  end
  for _, place in ipairs(asked) do
    local function due(key) return has_due(key, pools[place]) end
    local free = where(2 * place + 1, has_passed, where(2 * place, due, {}))
    for shard = 1, shards do
      if free[shard] then claimable[#claimable + 1], claimable[#claimable + 2] = shard, place end
    end
    local waiting = KEYS[1 + shards * width + place]
    jobs = jobs or waiting and is_there(waiting)
  end
end

-- As a rule nothing is there at all, which is one question.
local keys = {}
for at = 2, #KEYS do keys[at - 1] = KEYS[at] end
if any_exists(keys) then look_closely() end
if #claimable + #timed == 0 and not jobs and not left then
  local nothing = {}
  for _, place in ipairs(asked) do
    nothing[#nothing + 1], nothing[#nothing + 2] = pools[place], text(now)
  end
  -- A server that takes no writes leaves each to look by itself.
  pcall(redis.call, 'HSET', KEYS[1], unpack(nothing))
end
return {now, jobs and 1 or 0, claimable, timed}
