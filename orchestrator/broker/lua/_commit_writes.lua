-- The writes of a commit, when nothing can refuse it any more.

local limits = {eq_keep = eq_keep, eq_ttl_ms = eq_ttl_ms}

-- HSET first: under maxmemory Redis refuses a script's first growing write and no later one.
local function write_session(own, known, outcome, now)
  local result = text(outcome.eq) .. ' ' .. text(outcome.tip) .. ' ' .. (outcome.released and 1 or 0) .. ' '
    .. text(outcome.tree_seq)
  local set = {'seq', text(outcome.seq), 'head', outcome.head, 'eq', text(outcome.eq), 'cursor', text(outcome.cursor),
    'sq_done', text(outcome.done), 'commit', commit_id, 'result', result}
  if #entries > 0 or outcome.cursor > outcome.old_cursor or outcome.parks then
    set[#set + 1], set[#set + 2] = 'tries', '0'
  end
  if outcome.released then
    for _, value in ipairs({'owner', '', 'claim', ''}) do set[#set + 1] = value end
  end
  if own.pending > 0 then
    set[#set + 1], set[#set + 2] = 'sq', text(outcome.tip)
    set[#set + 1], set[#set + 2] = 'sq_total', text(own.total + own.pending_bytes)
  end
  if targets[0].counted then
    set[#set + 1], set[#set + 2] = 'regular', text(own.regular)
    set[#set + 1], set[#set + 2] = 'interrupts', text(own.interrupts)
  end
  if outcome.moves then set[#set + 1], set[#set + 2] = 'recency', text(now) end
  if outcome.states and session == tree then set[#set + 1], set[#set + 2] = 'states', outcome.states end
  for _, field in ipairs(fields) do set[#set + 1], set[#set + 2] = field.name, field.value end
  redis.call('HSET', KEYS[1], unpack(set))
  if outcome.states and session ~= tree then redis.call('HSET', KEYS[22], 'states', outcome.states) end
  append_entries(KEYS[2], entries, outcome.old_seq, epoch)
  own.seq = text(outcome.seq)
  local told = with_told(events, targets[0].told, {seq = outcome.old_seq, head = known.head}, outcome)
  append_events(KEYS[3], told, outcome.old_eq, eq_keep, eq_ttl_ms, now)
  if outcome.cursor == outcome.old_cursor then return end
  if outcome.cursor == own.n then
    redis.call('DEL', KEYS[4])
  else
    redis.call('XTRIM', KEYS[4], 'MINID', '=', text(outcome.cursor + 1) .. '-0')
  end
end

-- Answers whom the sender is to poke: session, worker, …
local function write_mail(now)
  for _, m in ipairs(mail) do
    local entry = {kind = 'mail', payload = m.payload, client = '', submission = m.key, sender = session, lane = m.interrupt}
    enqueue(targets[m.to].box, entry, now)
  end
  local pokes = {}
  for _, target in ipairs(targets) do
    local box = target.box
    if target.mailed then
      save_box(box)
      local held = is_held(target.session, target.pool)
      wake_if_parked(target.session, target.pool, KEYS[6], box, held, now, takes and worker)
      if held then pokes[#pokes + 1], pokes[#pokes + 2] = target.session, box.owner end
    end
  end
  for i = 0, #targets do
    local box = targets[i].box
    if targets[i].counted then
      redis.call('HSET', KEYS[6], 'm:' .. box.agent_id, text(box.regular), 'i:' .. box.agent_id, text(box.interrupts))
    end
  end
  return pokes
end

local function write_children(known, now)
  if #children == 0 then return end
  local who = redis.call('HGET', KEYS[1], 'who') or ''
  local labels = {namespace = known.namespace or '', source = 'agent', who = who, ephemeral = ''}
  for _, child in ipairs(children) do
    write_birth(child, KEYS[6], KEYS[14], limits, labels, now)
    -- A reservation that was forgotten holds from here on.
    if num(child.agent_id) > num(redis.call('HGET', KEYS[6], 'last_agent')) then
      redis.call('HSET', KEYS[6], 'last_agent', child.agent_id)
    end
  end
end

local function write_timers()
  for _, id in ipairs(timers_clear) do
    redis.call('ZREM', KEYS[11], session .. ':' .. id)
    redis.call('HDEL', KEYS[12], id)
  end
  for _, timer in ipairs(timers_set) do
    redis.call('ZADD', KEYS[11], timer.at_ms, session .. ':' .. timer.id)
    redis.call('HSET', KEYS[12], timer.id, timer.generation .. ':' .. timer.payload)
  end
end

local function write_tree(outcome, drawn, now)
  local cause = {session = session, seq = outcome.seq, head = outcome.head, depths = outcome.depths}
  for i, event in ipairs(tree_events) do
    local tree_seq = outcome.old_tree_seq + i
    log_event(KEYS[5], tree_seq, event, cause, now)
    if event.once ~= '' then redis.call('HSET', KEYS[6], 'said:' .. event.once, text(tree_seq)) end
  end
  for _, watcher in ipairs(outcome.watchers) do tell(watcher, watcher.told, limits, now) end
  if #tree_events > 0 then redis.call('HSET', KEYS[6], 'tree_seq', text(outcome.tree_seq)) end
  for _, row in ipairs(summary) do redis.call('HSET', KEYS[6], row.field, row.value) end
  for _, counter in ipairs(drawn.order) do redis.call('HSET', KEYS[6], counter, text(drawn.value[counter])) end
end

-- Answers how many that waited for room are woken.
local function write_budget(budget, now)
  if not budget then return 0 end
  save_budget(budget.kept, KEYS[6], day_key and budget.settled, now)
  if day_key then save_day(budget.day, day_key, spend_ms) end
  return wake_waiting(budget.to_wake, KEYS[11], now)
end

local function write_approvals(now)
  for _, key in ipairs(approvals_close) do
    if redis.call('HDEL', KEYS[13], session .. ':' .. key) == 1 then notify_asked(KEYS[16], session, key, '0') end
  end
  for _, approval in ipairs(approvals_open) do
    redis.call('HSET', KEYS[13], session .. ':' .. approval.key, text(now) .. ':' .. approval.payload)
    notify_asked(KEYS[16], session, approval.key, '1')
  end
end

local function drop_secrets()
  for _, name in ipairs(secrets_drop) do redis.call('HDEL', KEYS[#KEYS], name) end
end

-- What was folded from the words, and told of them, goes with them.
local function redact(now)
  if #redacted == 0 then return end
  local instead, snapshot, redactions = KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS]
  for _, row in ipairs(redacted) do
    redis.call('HSET', instead, text(row.seq), row.stored)
    redis.call('XDEL', KEYS[2], text(row.seq) .. '-0')
  end
  redis.call('DEL', snapshot, KEYS[3])
  redis.call('HSET', KEYS[1], 'snapshot_seq', '0', 'redacting', redacting)
  redis.call('ZADD', redactions, text(now), session)
  -- A session that is marked is found in this list alone, however long another one is at work that it names.
  local name = string.sub(KEYS[1], 1, -#session - 1)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', redactions, '-inf', text(now - 2592000000), 'LIMIT', 0, 1000)) do
    local known, owed = pcall(redis.call, 'HGET', name .. old, 'redacting')
    if known and (owed or '') == '' then redis.call('ZREM', redactions, old) end
  end
end

-- Whether the step leaves its tree closed.
local function closes_tree()
  return session == tree and given_field('status') == 'closed'
end

-- Whether lists are to show the session otherwise. Who gives it back is told of anyway.
local function is_shown_anew(known)
  return given_field('meta') or given_field('name') or (given_field('status') or known.status) ~= known.status
end

local function write_standing(outcome, known, now)
  redis.call('ZADD', KEYS[14], text(now), session)
  if outcome.moves then index_move(KEYS[15], known, session, now) end
  if closes_tree() then
    may_rest(KEYS[17], tree, now)
    may_rest(KEYS[18], tree, now)
  end
  if outcome.released then
    redis.call('ZREM', KEYS[8], session)
    notify_released(KEYS[19], session)
  elseif is_shown_anew(known) then
    notify_changed(session)
  end
  if outcome.yields then make_due(session, pools[0], KEYS[6]) end
end
