-- uses: base index
-- takes: tree by owed_too? whole? pools(name) sessions(session pool# epoch sq) blobs#
-- gives: OK now# | HELD session owner | UNLISTED unlisted(session) | BLOBS
--
-- Every key of the sessions goes, and with `whole` the tree's own: all at one moment, or nothing does. HELD names
-- the first session that is in the way: a worker holds it; or, unless `owed_too`, one is to take it (what it was
-- given since somebody looked was acknowledged, and must not go unread); or its epoch or its queue's end is not the
-- one that was seen (empty: anything will do): since then a worker has had it and let it go, or somebody spoke to it;
-- or it is of another tree or pool: it was deleted and made anew. Pool 0 is that of a session that the caller found
-- gone: it must be.
--
-- A whole tree has every session that its registry names: a birth writes `s:<agent>` in the script that makes the
-- session, and nothing removes it. UNLISTED names those of them that were not listed, be it that they were born
-- since the caller looked, or that it saw too few. Epochs alone would not do: between the look at the list of
-- sessions and the look at a holder's epoch the holder may have made one more and parked. Of blobs there must be as
-- many as were listed, since one that is stored meanwhile would be left for ever; the set only grows.
--
-- Redis does nothing else meanwhile. Measured with Redis 7.0 on two shared cores, each session with six fields in the
-- registry: 1,000 sessions 39 ms, and 99 ms if each has 500 entries and 500 events left (360 MB are freed); 5,000
-- sessions 156 and 285 ms.
--
-- KEYS  1 sessions zset   2 timers zset   3 approvals hash   4 agents hash   5 blobs set   6 tree stream
--       7 secrets hash   8 index zset    9 asked stream
--      10 to_archive zset   11 to_delete zset   12 deleted zset: the sessions that went, with the time, for KEPT_MS
--      13 released stream   14 deleted_by hash: of the same sessions `<time>\n<namespace>\n<who deleted them>`
--      15 sealed_tree hash
--      16… due zset and leases zset of each pool, then of each session its hash, its timer hash and seven more,
--          which are deleted whatever they are, then each blob

local KEPT_MS = 2592000000
local MOST_BY = 200
local next_key = 16
for i, name in ipairs(pools) do
  pools[i] = {name = name, due = KEYS[next_key], leases = KEYS[next_key + 1]}
  next_key = next_key + 2
end
local first_session, listed = next_key, {}
for _, row in ipairs(sessions) do
  row.key, row.timer, row.pool = KEYS[next_key], KEYS[next_key + 1], pools[row.pool]
  listed[row.session] = true
  next_key = next_key + 9
end
if #KEYS ~= next_key - 1 + blobs then error('MISCALL there are ' .. #KEYS .. ' keys') end

local function any_misfit()
  local bad = misfit(KEYS[1], 'zset') or misfit(KEYS[2], 'zset') or misfit(KEYS[3], 'hash')
    or misfit(KEYS[4], 'hash') or misfit(KEYS[5], 'set') or misfit(KEYS[8], 'zset') or misfit(KEYS[9], 'stream')
    or misfit(KEYS[10], 'zset') or misfit(KEYS[11], 'zset') or misfit(KEYS[12], 'zset')
    or misfit(KEYS[13], 'stream') or misfit(KEYS[14], 'hash')
  if bad then return bad end
  for _, pool in ipairs(pools) do
    bad = misfit(pool.due, 'zset') or misfit(pool.leases, 'zset')
    if bad then return bad end
  end
  for _, row in ipairs(sessions) do
    bad = misfit(row.key, 'hash') or misfit(row.timer, 'hash')
    if bad then return bad end
  end
end

-- 1. Is every key what it should be, and every session as it was seen?
local bad = any_misfit()
if bad then return bad end
for _, row in ipairs(sessions) do
  local s = fields_of(row.key, {'tree', 'pool', 'epoch', 'sq', 'cursor', 'owner'})
  if s.tree then
    local pool = row.pool
    local moved = s.tree ~= tree or not pool or s.pool ~= pool.name
    local used = row.epoch ~= '' and num(s.epoch) ~= num(row.epoch) or row.sq ~= '' and num(s.sq) ~= num(row.sq)
    if moved or used or redis.call('ZSCORE', pool.leases, row.session) then return {'HELD', row.session, s.owner or ''} end
    row.due = redis.call('ZSCORE', pool.due, row.session)
    if not owed_too and (row.due or num(s.sq) ~= num(s.cursor)) then return {'HELD', row.session, ''} end
  end
end

-- 2. Is that all of the tree?
if whole then
  local unlisted = {}
  for _, field in ipairs(redis.call('HKEYS', KEYS[4])) do
    local session = string.sub(field, 1, 2) == 's:' and redis.call('HGET', KEYS[4], field)
    if session and not listed[session] then unlisted[#unlisted + 1] = session end
  end
  if #unlisted > 0 then return {'UNLISTED', unlisted} end
  if #redis.call('SMEMBERS', KEYS[5]) ~= blobs then return {'BLOBS'} end
end

-- 3. Everything goes.
for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
  local asker, key = string.match(field, '^([^:]*):(.*)$')
  if listed[asker] then
    redis.call('HDEL', KEYS[3], field)
    notify_asked(KEYS[9], asker, key, '0')
  end
end
for i, row in ipairs(sessions) do
  if row.due then redis.call('ZREM', row.pool.due, row.session) end
  redis.call('ZREM', KEYS[1], row.session)
  local labels = fields_of(row.key, INDEXED)
  if labels.agent_id then row.namespace = labels.namespace or '' end
  index_remove(KEYS[8], labels, row.session)
  for _, timer in ipairs(redis.call('HKEYS', row.timer)) do redis.call('ZREM', KEYS[2], row.session .. ':' .. timer) end
  local k = first_session + 9 * (i - 1)
  redis.call('DEL', KEYS[k], KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4], KEYS[k + 5], KEYS[k + 6], KEYS[k + 7],
    KEYS[k + 8])
end
if whole then
  redis.call('ZREM', KEYS[10], tree)
  redis.call('ZREM', KEYS[11], tree)
  redis.call('DEL', KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[15])
end
for i = next_key, #KEYS do redis.call('DEL', KEYS[i]) end

-- 4. Machines with files of the sessions are told. A full server takes these writes behind those that free memory.
local now = now_ms()
for _, row in ipairs(sessions) do redis.call('ZADD', KEYS[12], text(now), row.session) end
for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[12], '-inf', text(now - KEPT_MS), 'LIMIT', 0, 1000)) do
  redis.call('ZREM', KEYS[12], old)
  redis.call('HDEL', KEYS[14], old)
end
-- Who asks for one of them is told who deleted it, and when.
for _, row in ipairs(sessions) do
  if row.namespace then
    redis.call('HSET', KEYS[14], row.session, text(now) .. '\n' .. row.namespace .. '\n' .. beginning(by, MOST_BY))
  end
end
redis.call('PEXPIRE', KEYS[14], KEPT_MS)
for _, row in ipairs(sessions) do notify_released(KEYS[13], row.session) end
return {'OK', now}
