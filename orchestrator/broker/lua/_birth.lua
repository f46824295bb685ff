-- Shared by create and commit: a session comes into being, whole or not at all.
-- Keys of one birth, in order: session, rollout, eq, sq, seen, seen_at.

local BIRTH_KEYS = 6

local function take_birth(first_key, pools)
  local b = {
    session = take(), tree = take(), pool = pools[take_number()], agent_id = take(), parent = take(),
    digest = take(), status = take(), meta = take(), min_core = text(take_number()),
    entries = take_list(3), events = take_list(3), submissions = take_list(6),
  }
  b.key, b.rollout, b.eq = KEYS[first_key], KEYS[first_key + 1], KEYS[first_key + 2]
  b.sq, b.seen, b.seen_at = KEYS[first_key + 3], KEYS[first_key + 4], KEYS[first_key + 5]
  return b
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
    redis.call('XADD', rollout, text(seq + i) .. '-0', 'p', e[1], 's', e[2], 'e', epoch, 'h', e[3])
  end
end

local function append_events(eq, events, n, keep, ttl_ms)
  if #events == 0 then return end
  for i, e in ipairs(events) do
    if e[4] then
      redis.call('XADD', eq, 'MAXLEN', '~', keep, text(n + i) .. '-0', 'p', e[1], 's', e[2], 'h', e[3], 'x', e[4])
    else
      redis.call('XADD', eq, 'MAXLEN', '~', keep, text(n + i) .. '-0', 'p', e[1], 's', e[2], 'h', e[3])
    end
  end
  redis.call('PEXPIRE', eq, ttl_ms)
end

local function remember(seen, seen_at, id, n, digest, now)
  redis.call('HSET', seen, id, text(n) .. ':' .. digest)
  redis.call('ZADD', seen_at, text(now), id)
end

local function write_birth(b, agents, sessions, limits, now)
  local box = {
    key = b.key, sq = b.sq, seq = text(#b.entries), n = 0, total = 0, regular = 0, interrupts = 0,
  }
  local head = #b.entries > 0 and b.entries[#b.entries][3] or string.rep('\0', 32)
  redis.call('HSET', b.key,
    'tree', b.tree, 'pool', b.pool.name, 'agent_id', b.agent_id, 'parent', b.parent, 'created', b.digest,
    'created_ms', text(now), 'status', b.status, 'meta', b.meta, 'min_core', b.min_core, 'seq', text(#b.entries), 'head', head,
    'eq', text(#b.events), 'cursor', '0', 'epoch', '0', 'owner', '', 'claim', '', 'tries', '0')
  append_entries(b.rollout, b.entries, 0, '0')
  append_events(b.eq, b.events, 0, limits.eq_keep, limits.eq_ttl_ms)
  for _, s in ipairs(b.submissions) do
    local n = enqueue(box, {kind = s[4], payload = s[5], client = s[1], submission = s[2], sender = s[6]}, now)
    remember(b.seen, b.seen_at, s[1] .. '|' .. s[2], n, s[3], now)
  end
  save_box(box)
  redis.call('HSET', agents, 's:' .. b.agent_id, b.session)
  redis.call('ZADD', sessions, text(now), b.session)
  if #b.submissions > 0 then make_due(b.session, b.pool, agents) end
end
