-- What a commit is refused for, read before anything is written: keys that are not what they should be,
-- another holder, a mark, a counter at its limit, a budget, a target that is gone or full, a text that is not stored.

local day_key, first_text

-- Pools, targets, children and texts by the keys that are theirs; the session itself is target 0 of pool 0.
local function place_others()
  local next_key = 23
  for i, name in ipairs(pools) do
    pools[i] = fixed_pool(name, next_key, near)
    next_key = next_key + 4
  end
  pools[0] = fixed_pool(pool_name, 7, near)
  for _, target in ipairs(targets) do
    target.pool, target.told = pools[target.pool], {}
    target.key, target.sq, target.eq = KEYS[next_key], KEYS[next_key + 1], KEYS[next_key + 2]
    next_key = next_key + 3
  end
  for _, child in ipairs(children) do
    place_birth(child, next_key, pools)
    next_key = next_key + BIRTH_KEYS
  end
  if #settlements > 0 then day_key, next_key = KEYS[next_key], next_key + 1 end
  first_text = next_key
end

-- Looks at the keys that are written and that no step reads before. An error of a read tells of the others.
local function misfit_to_write()
  local bad = misfit(KEYS[11], 'zset') or misfit(KEYS[12], 'hash') or misfit(KEYS[13], 'hash') or misfit(KEYS[14], 'zset')
    or misfit(KEYS[15], 'zset') or misfit(KEYS[17], 'zset') or misfit(KEYS[18], 'zset')
    or misfit(KEYS[7], 'zset') or misfit(KEYS[8], 'zset') or misfit(KEYS[10], 'string')
  if bad then return bad end
  bad = #secrets_drop > 0 and misfit(KEYS[#KEYS], 'hash')
    or #redacted > 0 and (misfit(KEYS[#KEYS - 2], 'hash') or misfit(KEYS[#KEYS - 1], 'string') or misfit(KEYS[#KEYS], 'zset'))
  if bad then return bad end
  for _, pool in ipairs(pools) do
    bad = pool_misfit(pool)
    if bad then return bad end
  end
end

-- The keys that every step, or one with such targets and children, reads before its first write.
local function misfit_read()
  local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'stream') or misfit(KEYS[3], 'stream') or misfit(KEYS[4], 'stream')
    or misfit(KEYS[5], 'stream') or misfit(KEYS[6], 'hash') or misfit(KEYS[9], 'stream') or misfit(KEYS[16], 'stream')
    or misfit(KEYS[19], 'stream') or misfit(KEYS[21], 'stream') or misfit(KEYS[22], 'hash')
    or day_key and misfit(day_key, 'hash')
  if bad then return bad end
  for _, target in ipairs(targets) do
    bad = misfit(target.key, 'hash') or misfit(target.sq, 'stream') or misfit(target.eq, 'stream')
    if bad then return bad end
  end
  for _, child in ipairs(children) do
    bad = birth_misfit(child)
    if bad then return bad end
  end
end

-- The session's own hash in one read: its box, and what else a commit knows of it; nothing if the session is gone.
local function read_own()
  local own, held_by, held_since, head, cursor, eq, commit, result, namespace, source, shelved, ephemeral, recency, created_ms,
    status, states, who = read_box(KEYS[1], KEYS[4], 'claim', 'epoch', 'head', 'cursor', 'eq', 'commit', 'result',
      'namespace', 'source', 'shelved', 'ephemeral', 'recency', 'created_ms', 'status', 'states', 'who')
  if not own then return end
  return own, {owner = own.owner, claim = held_by, epoch = held_since, head = head, cursor = cursor, eq = eq, commit = commit,
    result = result, namespace = namespace, source = source, shelved = shelved, ephemeral = ephemeral, recency = recency,
    created_ms = created_ms, agent_id = own.agent_id, status = status, states = states, who = who}
end

local function concerns_budget()
  return within_budget or #settlements > 0 or #reservations > 0 or #waits > 0
end

-- Of a step whose first answer was lost: what it gave, with the accounts of now, for the worker warns by them.
local function first_answer(own, known)
  local eq, tip, released, tree_seq = string.match(known.result, '^(%d+) (%d+) (%d+) (%d+)$')
  local now = now_ms()
  local kept = concerns_budget() and read_budget(KEYS[6], now, own.agent_id)
  return {'OK', num(own.seq), known.head, tonumber(tip), tonumber(eq), tonumber(released), tonumber(tree_seq), now,
    {}, 0, '', kept and accounts(kept) or {}}
end

-- Why the sender may not build on this; nothing if it may.
local function fenced(own, known)
  if known.owner ~= worker or known.claim ~= claim or known.epoch ~= epoch then return 'claim' end
  if own.seq ~= expect_seq then return 'seq' end
  if known.head ~= expect_head then return 'head' end
  if (known.commit or '') ~= expect_commit then return 'commit' end
end

-- The counters as they will be: {by name, in order}; or the refusal of the one that is at its limit.
local function draw_counters()
  local drawn = {value = {}, order = {}}
  for _, draw in ipairs(draws) do
    local counter = draw.counter
    local value = (drawn.value[counter] or num(redis.call('HGET', KEYS[6], counter))) + draw.amount
    local most = draw.limit ~= '' and redis.call('HGET', KEYS[6], draw.limit)
    if draw.amount > 0 and most and value > num(most) then return {'REFUSED', counter, text(num(most)), {}} end
    if not drawn.value[counter] then drawn.order[#drawn.order + 1] = counter end
    drawn.value[counter] = value
  end
  return nil, drawn
end

-- The tree's budget behind this step: {kept, settled, day, to_wake}; nothing if the step does not touch it.
local function draw_budget(own, known, now)
  if not concerns_budget() then return end
  local budget, settled, to_wake = read_budget(KEYS[6], now, own.agent_id), {0, 0, 0}, ''
  local day = {users = {}, amounts = {}}
  for _, row in ipairs(settlements) do
    local counted = settle(budget, 'r:' .. session .. ':' .. row.request, KEYS[6], not row.estimated and row.used or nil)
    for i = 1, 3 do settled[i] = settled[i] + counted[i] end
    use_on(day, day_key, {known.namespace or '', row.model, known.who or ''}, counted)
  end
  if #settlements > 0 then to_wake, budget.waiting.reserved = budget.waiting.reserved, '' end
  local why, kind
  if within_budget then
    why, kind = no_room(budget, {0, 0, 0})
    if why == 'spent' then return {'REFUSED', 'budget_spent', kind, accounts(budget)} end
  end
  for _, row in ipairs(reservations) do
    local field = 'r:' .. session .. ':' .. row.request
    let_go(budget, held_for(budget, field, KEYS[6]))
    why, kind = no_room(budget, row.amount)
    if why then return {'REFUSED', 'budget_' .. why, kind, accounts(budget)} end
    hold(budget, field, row.amount)
  end
  for _, row in ipairs(waits) do
    why = no_room(budget, row.amount)
    -- For a price it would wait for ever: a budget of cost began since, and its request is refused for that.
    if not why or why == 'unpriced' then return {'REFUSED', 'budget_free', '', accounts(budget)} end
    budget.waiting[why] = listed(budget.waiting[why], session .. ':' .. row.timer)
  end
  return nil, {kept = budget, settled = settled, day = day, to_wake = to_wake}
end

-- The refusal, or nothing and what the step takes of the tree's counters and budget.
local function check_rules(own, known, now)
  for _, field in ipairs(unless_marked) do
    if redis.call('HEXISTS', KEYS[6], field) == 1 then return {'REFUSED', 'marked', field, {}} end
  end
  local refused, drawn, budget
  refused, drawn = draw_counters()
  if refused then return refused end
  refused, budget = draw_budget(own, known, now)
  return refused, drawn, budget
end

local function check_targets(own)
  targets[0] = {session = session, key = KEYS[1], sq = KEYS[4], eq = KEYS[3], pool = pools[0], box = own, told = {}}
  for _, target in ipairs(targets) do
    target.box = read_box(target.key, target.sq)
  end
  for _, m in ipairs(mail) do
    local target = targets[m.to]
    local box = target.box
    if not box or box.tree ~= tree then return {'REFUSED', 'unknown_target', target.session, {}} end
    if box.archived then return {'REFUSED', 'archived_target', target.session, {}} end
    if box.pool ~= target.pool.name then return {'MOVED', box.tree, box.pool, target.session} end
    if ahead(target.sq, box.n) then return ahead_reply(target.sq, box.n) end
    if m.bounded and not has_room(box, #m.payload, sq_max, sq_max_bytes) then
      return {'REFUSED', 'queue_full', target.session, {}}
    end
    box.pending = box.pending + 1
    box.pending_bytes = box.pending_bytes + #m.payload
    target.mailed = true
  end
end

local function check_children()
  local numbers = {}
  for _, child in ipairs(children) do
    local bad = misfit(child.key, 'hash')
    if bad then return bad end
    if redis.call('EXISTS', child.key) == 1 then return {'REFUSED', 'session_exists', child.session, {}} end
    -- Its number was reserved, and Redis may have forgotten that and given it to somebody else, of this step too.
    if numbers[child.agent_id] or redis.call('HEXISTS', KEYS[6], 's:' .. child.agent_id) == 1 then
      return {'REFUSED', 'agent_taken', child.agent_id, {}}
    end
    numbers[child.agent_id] = true
    bad = birth_misfit(child)
    if bad then return bad end
  end
end

local function check_texts()
  local lost = unstored(first_text, texts)
  -- A text is stored only for a tree that is there.
  if lost and redis.call('EXISTS', KEYS[6]) == 0 then
    return {'CORRUPT', KEYS[6], 'it is gone, and its tree has sessions'}
  end
  return lost
end
