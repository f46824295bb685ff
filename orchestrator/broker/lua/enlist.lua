-- uses: base index
-- takes: session shelve
-- enlist(…) -> OK now | UNKNOWN | AGENT | CORRUPT key why
--
-- Brings a root into the fleet's index, if an earlier version made it; `shelve` puts it away from lists (1), or back
-- (0); empty leaves that as it is. Its log and its work are not touched. Twice is as good as once.
--
-- KEYS  1 session hash   2 index zset   3 sessions zset   of the shard

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset') or misfit(KEYS[3], 'zset')
if bad then return bad end
local row = fields_of(KEYS[1], INDEXED)
if not row.agent_id then return {'UNKNOWN'} end
if row.agent_id ~= '0' then return {'AGENT'} end
local now = now_ms()
local changes = shelve ~= '' and shelve ~= (row.shelved or '0')
if row.ephemeral == '1' or row.recency and not changes then return {'OK', now} end

local recency = num(row.recency or redis.call('ZSCORE', KEYS[3], session) or row.created_ms)
-- HSET first: under maxmemory Redis refuses a script's first growing write and no later one.
if changes then redis.call('HSET', KEYS[1], 'shelved', shelve) end
index_remove(KEYS[2], row, session)
if changes then row.shelved = shelve end
row.recency = false
redis.call('HSET', KEYS[1], 'recency', text(recency))
index_move(KEYS[2], row, session, recency)
return {'OK', now}
