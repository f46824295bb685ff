-- Shared by create and commit: a session comes into being, whole or not at all.
-- Keys of one birth, in order: session, rollout, eq, sq, seen, seen_at.

-- record birth: session tree pool# agent_id parent digest status meta min_core~ portable?
-- record birth: entries(payload salt chain) events(payload seq hash8 at_ms~)
-- record birth: submissions(client submission digest kind payload sender)

local BIRTH_KEYS = 6

-- A birth as it was taken, with the keys that stand from first_key on.
local function place_birth(b, first_key, pools)
  b.pool = pools[b.pool] or error('MISCALL there is no pool ' .. b.pool)
  b.key, b.rollout, b.eq = KEYS[first_key], KEYS[first_key + 1], KEYS[first_key + 2]
  b.sq, b.seen, b.seen_at = KEYS[first_key + 3], KEYS[first_key + 4], KEYS[first_key + 5]
end

local function birth_misfit(b)
  local bad = misfit(b.key, 'hash') or misfit(b.rollout, 'stream') or misfit(b.eq, 'stream')
    or misfit(b.sq, 'stream') or misfit(b.seen, 'hash') or misfit(b.seen_at, 'zset')
  if bad then return bad end
  for _, stream in ipairs({b.rollout, b.eq, b.sq}) do
    if ahead(stream, 0) then return ahead_reply(stream, 0) end
  end
end

local function append_entries(rollout, entries, seq, epoch)
  for i, e in ipairs(entries) do
    redis.call('XADD', rollout, text(seq + i) .. '-0', 'p', e.payload, 's', e.salt, 'e', epoch, 'h', e.chain)
  end
end

-- An event has the time that its entry says; one without an entry (0) has that of the script.
local function append_events(eq, events, n, keep, ttl_ms, now)
  if #events == 0 then return end
  for i, e in ipairs(events) do
    local at = e.at_ms == '0' and text(now) or e.at_ms
    if e.tree_seq then
      redis.call('XADD', eq, 'MAXLEN', '~', keep, text(n + i) .. '-0',
        'p', e.payload, 's', e.seq, 'h', e.hash8, 't', at, 'x', e.tree_seq)
    else
      redis.call('XADD', eq, 'MAXLEN', '~', keep, text(n + i) .. '-0', 'p', e.payload, 's', e.seq, 'h', e.hash8, 't', at)
    end
  end
  redis.call('PEXPIRE', eq, ttl_ms)
end

local function remember(seen, seen_at, id, n, digest, now)
  redis.call('HSET', seen, id, text(n) .. ':' .. digest)
  redis.call('ZADD', seen_at, text(now), id)
end

-- labels: {namespace, source, who, ephemeral}: for lists, and for who may see it.
local function write_birth(b, agents, sessions, limits, labels, now)
  local box = {
    key = b.key, sq = b.sq, seq = text(#b.entries), n = 0, total = 0, regular = 0, interrupts = 0,
  }
  local head = #b.entries > 0 and b.entries[#b.entries].chain or string.rep('\0', 32)
  redis.call('HSET', b.key,
    'tree', b.tree, 'pool', b.pool.name, 'agent_id', b.agent_id, 'parent', b.parent, 'created', b.digest,
    'created_ms', text(now), 'status', b.status, 'meta', b.meta, 'min_core', b.min_core, 'seq', text(#b.entries), 'head', head,
    'eq', text(#b.events), 'cursor', '0', 'epoch', '0', 'owner', '', 'claim', '', 'tries', '0',
    'namespace', labels.namespace, 'source', labels.source, 'who', labels.who, 'ephemeral', labels.ephemeral)
  if b.portable then redis.call('HSET', b.key, 'copy_on', '') end
  append_entries(b.rollout, b.entries, 0, '0')
  append_events(b.eq, b.events, 0, limits.eq_keep, limits.eq_ttl_ms, now)
  for _, s in ipairs(b.submissions) do
    local n = enqueue(box, s, now)
    remember(b.seen, b.seen_at, s.client .. '|' .. s.submission, n, s.digest, now)
  end
  save_box(box)
  redis.call('HSET', agents, 's:' .. b.agent_id, b.session)
  redis.call('ZADD', sessions, text(now), b.session)
  if #b.submissions > 0 then
    wake(b.session, b.pool, agents, box, now)
  else
    notify_changed(b.session)
  end
end
