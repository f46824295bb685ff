-- uses: base fleet wake queue birth states index rest texts
-- takes: pool_name eq_keep~ eq_ttl_ms~ born<birth> summary(field value) namespace source who ephemeral announced#
-- takes: texts# near
-- gives: OK DUP CONFLICT now# | GIVEN_UP
--
-- A root session comes into being with its first entries and submissions. The session id is the
-- idempotency key: the same request again gets DUP, another request under the id CONFLICT. One that was announced
-- (at `announced`; 0: it was not), and whose packs were given up meanwhile, or whose announcement is lost, is not
-- created, and is given up from then on. A copy of the announcement that came later does not stand for it.
--
-- The large texts that it is born with were stored before it, to be kept for a while: from here on they live as
-- long as the tree. UNSTORED names those that Redis does not have, and nothing was made.
--
-- KEYS  1 agents:<tree>    hash    the tree's projection; receives the tree's turn, summary, first moment
--       2 sessions         zset    every session of the shard by last change
--       3 due:<pool>       zset    4 leases:<pool> zset   5 ready:<pool> stream   6 clock:<pool> string
--       7 session  hash    8 rollout stream   9 eq stream   10 sq stream   11 seen hash   12 seen_at zset
--      13 index zset      the roots of the shard that lists show   14 unborn zset
--      15 to_archive zset trees by when they may rest              16 blobs:<tree> set lists the texts   17… each text
--      last changed stream

local pool = fixed_pool(pool_name, 3, near)
local limits = {eq_keep = eq_keep, eq_ttl_ms = eq_ttl_ms}
place_birth(born, 7, {[0] = pool})

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset') or misfit(KEYS[13], 'zset') or pool_misfit(pool)
  or misfit(born.key, 'hash') or misfit(KEYS[14], 'zset') or misfit(KEYS[15], 'zset') or misfit(KEYS[16], 'set')
  or tell_changes(KEYS[#KEYS])
if bad then return bad end
local now = now_ms()
local created = redis.call('HGET', born.key, 'created')
if created then return {created == born.digest and 'DUP' or 'CONFLICT', now} end
bad = birth_misfit(born)
if bad then return bad end
if announced > 0 and num(redis.call('ZSCORE', KEYS[14], born.session)) ~= announced then
  -- Its client may have stored packs behind their removal: they are looked for once more.
  redis.call('ZADD', KEYS[14], 'NX', text(-now), born.session)
  return {'GIVEN_UP'}
end
local lost = unstored(17, texts)
if lost then return lost end

-- HSET first: under maxmemory Redis refuses a script's first growing write and no later one.
redis.call('HSET', KEYS[1], 'root', born.session, 'wall_from', text(now))
local labels = {namespace = namespace, source = source, who = who, ephemeral = ephemeral}
write_birth(born, KEYS[1], KEYS[2], limits, labels, now)
redis.call('HSET', born.key, 'states', with_agent('', born.agent_id, '', born.status))
if born.agent_id == '0' and ephemeral ~= '1' then
  redis.call('HSET', born.key, 'recency', text(now))
  index_move(KEYS[13], {namespace = namespace, source = source, created_ms = now}, born.session, now)
end
for _, f in ipairs(summary) do redis.call('HSET', KEYS[1], f.field, f.value) end
if announced > 0 then redis.call('ZREM', KEYS[14], born.session) end
may_rest(KEYS[15], born.session, now)
for i = 16, 16 + texts do redis.call('PERSIST', KEYS[i]) end
return {'OK', now}
