-- uses: base fleet wake queue
-- takes: session pool_name tree client submission digest kind payload sender by max_entries# max_bytes# keep# keep_ms#
-- takes: near apart[name value most# ttl_ms#]
-- gives: OK DUP n# owner quarantined? shelved? now# | CONFLICT | FULL entries# bytes~ | SECRETS most# | ARCHIVED | UNKNOWN
-- gives: MOVED tree pool
--
-- Appends one submission to the queue, once per (client, submission), and makes the session due
-- if it is parked. The holder, if there is one, is for the caller to poke. What the payload says nothing of (`apart`)
-- stands in a hash of its own from the same moment on, until a commit drops it or nobody has added any for so long.
--
-- KEYS  1 session  hash    state of the session     2 sq      stream  its submission queue
--       3 seen     hash    client|submission -> n:digest    4 seen_at zset  the same ids by arrival
--       5 agents   hash    the tree's fair turn
--       6 due zset   7 leases zset   8 ready stream   9 clock string   of the session's pool
--      10 changed  stream  whose row in lists is another       11 watched stream  whether somebody follows that
--      12 secrets hash    with `apart`: name -> value

local pool = fixed_pool(pool_name, 6, near)
local id = client .. '|' .. submission

local bad = misfit(KEYS[5], 'hash') or misfit(pool.due, 'zset') or misfit(pool.clock, 'string')
  or KEYS[12] and misfit(KEYS[12], 'hash')
if bad then return bad end

local function misfit_read()
  return misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'stream') or misfit(KEYS[3], 'hash') or misfit(KEYS[4], 'zset')
    or misfit(pool.leases, 'zset') or misfit(pool.ready, 'stream') or misfit(KEYS[11], 'stream')
end

-- The answer of a request that adds nothing, or nothing and what it is added to.
local function judged()
  local box, shelved = read_box(KEYS[1], KEYS[2], 'shelved')
  if not box then return {'UNKNOWN'} end
  box.shelved = shelved == '1' and '1' or ''
  if box.pool ~= pool_name or box.tree ~= tree then return {'MOVED', box.tree, box.pool} end
  local now = now_ms()
  local held = is_held(session, pool)

  local first = redis.call('HGET', KEYS[3], id)
  if first then
    local n, known = string.match(first, '^(%d+):(.*)$')
    if known ~= digest then return {'CONFLICT'} end
    return {'DUP', tonumber(n), held and box.owner or '', box.quarantined, box.shelved, now}
  end
  if box.archived then return {'ARCHIVED'} end
  if not has_room(box, #payload, max_entries, max_bytes) then
    return {'FULL', redis.call('XLEN', KEYS[2]), box.total - box.done}
  end
  if KEYS[12] and #redis.call('HKEYS', KEYS[12]) >= most then return {'SECRETS', most} end
  local torn, followed = any_ahead({KEYS[2], pool.ready}, {box.n, BEHIND_ALL}, KEYS[11], followed_since(now))
  torn = torn or followed and tell_changes(KEYS[10])
  if torn then return torn end
  return nil, box, held, redis.call('ZCARD', KEYS[4]), now
end

local refused, box, held, remembered, now = looked(judged, misfit_read)
if refused then return refused end

if KEYS[12] then
  redis.call('HSET', KEYS[12], name, value)
  redis.call('PEXPIRE', KEYS[12], text(ttl_ms))
end
local entry = {kind = kind, payload = payload, client = client, submission = submission, sender = sender, by = by}
local n = enqueue(box, entry, now)
save_box(box)
redis.call('HSET', KEYS[3], id, text(n) .. ':' .. digest)
redis.call('ZADD', KEYS[4], text(now), id)
-- Both bounds must be passed before an id is forgotten: a burst must not shorten the day.
local surplus = remembered + 1 - keep
if surplus > 0 then
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', text(now - keep_ms), 'LIMIT', 0, math.min(surplus, 16))) do
    redis.call('HDEL', KEYS[3], old)
    redis.call('ZREM', KEYS[4], old)
  end
end
wake_if_parked(session, pool, KEYS[5], box, held, now)
return {'OK', n, held and box.owner or '', box.quarantined, box.shelved, now}
