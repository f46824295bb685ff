-- uses: base fleet wake queue
-- takes: session pool_name tree id again_ms# near
-- gives: OK n# generation# owner now# | NONE | MOVED tree pool
--
-- Turns one due timer into a submission-queue entry that carries its id and generation, and makes
-- the session due, in one. Two workers that saw the same timer: the second finds NONE. The queue's
-- bounds do not apply: a deadline that cannot be delivered would never be. With again_ms it stands
-- until it is cleared, and fires again after so long; a queue that nobody has read gets no second entry.
--
-- KEYS  1 timers zset   2 timer:<session> hash   3 session hash   4 sq stream   5 agents hash
--       6 due zset   7 leases zset   8 ready stream   9 clock string
--      10 changed stream  11 watched stream

local member = session .. ':' .. id
local pool = fixed_pool(pool_name, 6, near)
local bad = misfit(KEYS[1], 'zset') or misfit(KEYS[2], 'hash') or misfit(KEYS[3], 'hash')
  or misfit(KEYS[4], 'stream') or misfit(KEYS[5], 'hash') or pool_misfit(pool)
  or misfit(KEYS[11], 'stream')
if bad then return bad end
local now = now_ms()
local at = redis.call('ZSCORE', KEYS[1], member)
if not at or tonumber(at) > now then return {'NONE'} end
local box = read_box(KEYS[3], KEYS[4])
local stored = redis.call('HGET', KEYS[2], id)
if box and (box.pool ~= pool_name or box.tree ~= tree) then return {'MOVED', box.tree, box.pool} end
if not box or box.archived or not stored then
  redis.call('ZREM', KEYS[1], member)
  redis.call('HDEL', KEYS[2], id)
  return {'NONE'}
end
local torn, followed = any_ahead({KEYS[4]}, {box.n}, KEYS[11], followed_since(now))
torn = torn or followed and tell_changes(KEYS[10])
if torn then return torn end
local generation, payload = string.match(stored, '^(%d+):(.*)$')

local n = box.n
if again_ms == 0 or redis.call('XLEN', KEYS[4]) == 0 then
  n = enqueue(box, {kind = 'timer', payload = payload, client = '', submission = id, sender = '', generation = generation}, now)
  save_box(box)
end
if again_ms > 0 then
  redis.call('ZADD', KEYS[1], text(now + again_ms), member)
else
  redis.call('ZREM', KEYS[1], member)
  redis.call('HDEL', KEYS[2], id)
end
local held = is_held(session, pool)
wake_if_parked(session, pool, KEYS[5], box, held, now)
return {'OK', n, tonumber(generation), held and box.owner or '', now}
