-- uses: base fleet index
-- takes: session shelve
-- gives: OK now# | UNKNOWN | AGENT
--
-- Brings a root into the fleet's index, and its tree to what upkeep looks at, if an earlier version made it;
-- `shelve` puts it away from lists (1), or back (0); empty leaves that as it is. Its log and its work are not touched.
-- Twice is as good as once.
--
-- KEYS  1 session hash   2 index zset   3 sessions zset   4 to_archive zset   5 to_delete zset   of the shard
--       6 changed stream

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset') or misfit(KEYS[3], 'zset')
  or misfit(KEYS[4], 'zset') or misfit(KEYS[5], 'zset')
  or tell_changes(KEYS[6])
if bad then return bad end
local row = fields_of(KEYS[1], INDEXED)
local status = redis.call('HGET', KEYS[1], 'status')
if not row.agent_id then return {'UNKNOWN'} end
if row.agent_id ~= '0' then return {'AGENT'} end
local now = now_ms()
local changes = shelve ~= '' and shelve ~= (row.shelved or '0')
local changed_ms = redis.call('ZSCORE', KEYS[3], session) or row.created_ms
redis.call('ZADD', KEYS[4], 'NX', text(num(changed_ms)), session)
if status == 'closed' then redis.call('ZADD', KEYS[5], 'NX', text(num(changed_ms)), session) end
if row.ephemeral == '1' or row.recency and not changes then return {'OK', now} end

local recency = num(row.recency or changed_ms)
-- HSET first: under maxmemory Redis refuses a script's first growing write and no later one.
if changes then redis.call('HSET', KEYS[1], 'shelved', shelve) end
index_remove(KEYS[2], row, session)
if changes then row.shelved = shelve end
row.recency = false
redis.call('HSET', KEYS[1], 'recency', text(recency))
index_move(KEYS[2], row, session, recency)
notify_changed(session)
return {'OK', now}
