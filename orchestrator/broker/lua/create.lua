-- uses: base wake queue birth
-- create(pool, eq_keep, eq_ttl_ms, birth, tree entries, summary) -> OK now | DUP now | CONFLICT | CORRUPT key why
--
-- A root session comes into being with its first entries and submissions. The session id is the
-- idempotency key: the same request again gets DUP, another request under the id CONFLICT.
--
-- KEYS  1 agents:<tree>    hash    the tree's projection; receives the tree's turn, tree_seq, summary, first moment
--       2 tree:<tree>      stream  the tree log; receives the tree entries
--       3 sessions         zset    every session of the shard by last change
--       4 due:<pool>       zset    5 leases:<pool> zset   6 ready:<pool> stream   7 clock:<pool> string
--       8 session  hash    9 rollout stream   10 eq stream   11 sq stream   12 seen hash   13 seen_at zset

local pool = fixed_pool(take(), 4)
local limits = {eq_keep = text(take_number()), eq_ttl_ms = text(take_number())}
local born = take_birth(8, {[0] = pool})
local tree_entries, summary = take_list(1), take_list(2)
all_taken()

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'stream') or misfit(KEYS[3], 'zset') or pool_misfit(pool)
  or misfit(born.key, 'hash')
if bad then return bad end
local now = now_ms()
local created = redis.call('HGET', born.key, 'created')
if created then return {created == born.digest and 'DUP' or 'CONFLICT', now} end
bad = birth_misfit(born)
if bad then return bad end
local tree_seq = num(redis.call('HGET', KEYS[1], 'tree_seq'))
if ahead(KEYS[2], tree_seq) then return ahead_reply(KEYS[2], tree_seq) end

-- HSET first: under maxmemory Redis refuses a script's first growing write and no later one.
redis.call('HSET', KEYS[1], 'tree_seq', text(tree_seq + #tree_entries), 'root', born.session,
  'wall_from', text(now))
write_birth(born, KEYS[1], KEYS[3], limits, now)
local head = redis.call('HGET', born.key, 'head')
for i, e in ipairs(tree_entries) do
  redis.call('XADD', KEYS[2], text(tree_seq + i) .. '-0',
    'p', e[1], 's', born.session, 'q', text(#born.entries), 'h', head, 'd', '', 't', text(now), 'a', '')
end
for _, f in ipairs(summary) do redis.call('HSET', KEYS[1], f[1], f[2]) end
return {'OK', now}
