-- uses: base wake queue birth tree budget
-- commit(…) -> OK seq head tip eq released tree_seq now {session worker to poke, …} woken depths {account, …}
--            | FENCED epoch why | REFUSED reason detail {account, …} | MOVED tree pool target | CORRUPT key why
--
-- The one write of the system: everything that one step of a session does becomes visible at once.
-- Accepted only from the claim that holds the session, on top of the very entry and the very commit that it
-- built on: under a commit without entries seq and head stand still, and only its id tells before from behind.
-- The same commit id again gets the first answer, also after it released the claim.
--
-- ARGV  session pool tree worker claim epoch commit_id expect_seq expect_head expect_commit|''
--       cursor|'' release taken_regular taken_interrupts eq_keep eq_ttl_ms sq_max sq_max_bytes, then lists, each a
--       count and its rows: fields(2) entries(3) events(3) timers_clear(1) timers_set(4)
--       approvals_open(2) approvals_close(1); then 0, or 1 and what concerns the tree:
--       pools(1) targets(2) mail(6) children(a birth each) tree_events(after inbox once about parts(1)
--       targets(1)) summary(2) draws(3) unless_marked(1) within_budget settlements(request estimated
--       amount) reservations(request amount) waits(timer amount). Target 0 is the session itself;
--       inbox '' is none.
--
-- KEYS  1 session    hash    claim, seq, head, cursor, last commit and its result
--       2 rollout    stream  receives the entries          3 eq     stream  receives the events
--       4 sq         stream  trimmed to the new cursor     5 tree   stream  the tree log
--       6 agents     hash    projection, guards, budgets, fair turn
--       7 due zset   8 leases zset   9 ready stream   10 clock string   of the session's pool
--      11 timers     zset    the shard's deadlines        12 timer  hash    id -> generation:payload
--      13 approvals  hash    the fleet's open approvals   14 sessions zset  by last change
--      15… four keys (as 7-10) for each further pool, then for each target of mail or events its
--          session hash, sq stream and eq stream, then for each child the six keys of a birth

local session, pool_name, tree = take(), take(), take()
local worker, claim, epoch = take(), take(), take()
local commit_id, expect_seq, expect_head, expect_commit = take(), take(), take(), take()
local cursor_arg, release = take(), take()
local taken_regular, taken_interrupts = take_number(), take_number()
local limits = {
  eq_keep = text(take_number()), eq_ttl_ms = text(take_number()), sq_max = take_number(), sq_max_bytes = take_number(),
}
local fields, entries, events = take_list(2), take_list(3), take_list(3)
local timers_clear, timers_set = take_list(1), take_list(4)
for _, row in ipairs(timers_set) do
  row[3] = text(tonumber(row[3]) or error('MISCALL the time of a timer is not a number'))
end
local approvals_open, approvals_close = take_list(2), take_list(1)

local pools = {[0] = fixed_pool(pool_name, 7)}
local targets, mail, children, tree_events, summary, draws, unless_marked = {}, {}, {}, {}, {}, {}, {}
local within_budget, settlements, reservations, waits = false, {}, {}, {}
-- Most steps concern nobody else, and are not made to look at what does.
if take_number() == 1 then
  local next_key = 15
  for i, row in ipairs(take_list(1)) do
    pools[i] = fixed_pool(row[1], next_key)
    next_key = next_key + 4
  end
  targets = take_list(2)
  for _, target in ipairs(targets) do
    target.pool, target.told = pools[tonumber(target[2])], {}
    target.key, target.sq, target.eq = KEYS[next_key], KEYS[next_key + 1], KEYS[next_key + 2]
    next_key = next_key + 3
  end
  mail = take_list(6)
  for i = 1, take_number() do
    children[i] = take_birth(next_key, pools)
    next_key = next_key + BIRTH_KEYS
  end
  tree_events, summary, draws, unless_marked = take_tree_events(), take_list(2), take_list(3), take_list(1)
  within_budget = take_number() == 1
  for i = 1, take_number() do settlements[i] = {take(), take_number(), take_amount()} end
  for i = 1, take_number() do reservations[i] = {take(), take_amount()} end
  for i = 1, take_number() do waits[i] = {take(), take_amount()} end
end
all_taken()

-- 1. Is every key what it should be?
local function any_misfit()
  local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'stream') or misfit(KEYS[3], 'stream')
    or misfit(KEYS[4], 'stream') or misfit(KEYS[5], 'stream') or misfit(KEYS[6], 'hash')
    or misfit(KEYS[11], 'zset') or misfit(KEYS[12], 'hash') or misfit(KEYS[13], 'hash') or misfit(KEYS[14], 'zset')
  if bad then return bad end
  for i = 0, #pools do
    bad = pool_misfit(pools[i])
    if bad then return bad end
  end
  for _, target in ipairs(targets) do
    bad = misfit(target.key, 'hash') or misfit(target.sq, 'stream') or misfit(target.eq, 'stream')
    if bad then return bad end
  end
  for _, child in ipairs(children) do
    bad = misfit(child.key, 'hash')
    if bad then return bad end
  end
end

local bad = any_misfit()
if bad then return bad end

-- 2. Is this the claim, and the entry, that may be built upon?
local own = read_box(KEYS[1], KEYS[4])
if not own then return {'FENCED', 0, 'unknown session'} end
local s = redis.call('HMGET', KEYS[1], 'owner', 'claim', 'epoch', 'head', 'cursor', 'eq', 'commit', 'result')
if s[7] == commit_id then
  local eq, tip, released, tree_seq = string.match(s[8], '^(%d+) (%d+) (%d+) (%d+)$')
  return {'OK', num(own.seq), s[4], tonumber(tip), tonumber(eq), tonumber(released), tonumber(tree_seq), now_ms(), {}, 0, '', {}}
end
if s[1] ~= worker or s[2] ~= claim or s[3] ~= epoch then return {'FENCED', num(s[3]), 'claim'} end
if own.seq ~= expect_seq then return {'FENCED', num(s[3]), 'seq'} end
if s[4] ~= expect_head then return {'FENCED', num(s[3]), 'head'} end
if (s[7] or '') ~= expect_commit then return {'FENCED', num(s[3]), 'commit'} end

-- 3. May it do what it wants?
local now = now_ms()
for _, row in ipairs(unless_marked) do
  if redis.call('HEXISTS', KEYS[6], row[1]) == 1 then return {'REFUSED', 'marked', row[1], {}} end
end
local drawn, counters = {}, {}
for _, row in ipairs(draws) do
  local counter, amount, limit = row[1], tonumber(row[2]), row[3]
  local value = (drawn[counter] or num(redis.call('HGET', KEYS[6], counter))) + amount
  local most = limit ~= '' and redis.call('HGET', KEYS[6], limit)
  if amount > 0 and most and value > num(most) then return {'REFUSED', counter, text(num(most)), {}} end
  if not drawn[counter] then counters[#counters + 1] = counter end
  drawn[counter] = value
end

local budget, settled, to_wake
if within_budget or #settlements > 0 or #reservations > 0 or #waits > 0 then
  budget, settled, to_wake = read_budget(KEYS[6], now), {0, 0, 0}, ''
  for _, row in ipairs(settlements) do
    local counted = settle(budget, 'r:' .. session .. ':' .. row[1], KEYS[6], row[2] == 0 and row[3] or nil)
    for i = 1, 3 do settled[i] = settled[i] + counted[i] end
    to_wake, budget.waiting.reserved = budget.waiting.reserved, ''
  end
  local why, kind
  if within_budget then
    why, kind = no_room(budget, {0, 0, 0})
    if why == 'spent' then return {'REFUSED', 'budget_spent', kind, accounts(budget)} end
  end
  for _, row in ipairs(reservations) do
    local field = 'r:' .. session .. ':' .. row[1]
    let_go(budget, held_for(budget, field, KEYS[6]))
    why, kind = no_room(budget, row[2])
    if why then return {'REFUSED', 'budget_' .. why, kind, accounts(budget)} end
    hold(budget, field, row[2])
  end
  for _, row in ipairs(waits) do
    why = no_room(budget, row[2])
    if not why then return {'REFUSED', 'budget_free', '', accounts(budget)} end
    budget.waiting[why] = listed(budget.waiting[why], session .. ':' .. row[1])
  end
end

targets[0] = {session, key = KEYS[1], sq = KEYS[4], eq = KEYS[3], pool = pools[0], box = own, told = {}}
for _, target in ipairs(targets) do
  target.box = read_box(target.key, target.sq)
end
for _, m in ipairs(mail) do
  local target = targets[tonumber(m[1])]
  local box = target.box
  if not box or box.tree ~= tree then return {'REFUSED', 'unknown_target', target[1], {}} end
  if box.archived then return {'REFUSED', 'archived_target', target[1], {}} end
  if box.pool ~= target.pool.name then return {'MOVED', box.tree, box.pool, target[1]} end
  if ahead(target.sq, box.n) then return ahead_reply(target.sq, box.n) end
  if m[6] == '1' and not has_room(box, #m[2], limits.sq_max, limits.sq_max_bytes) then
    return {'REFUSED', 'queue_full', target[1], {}}
  end
  box.pending = box.pending + 1
  box.pending_bytes = box.pending_bytes + #m[2]
  target.mailed = true
end
for _, child in ipairs(children) do
  if redis.call('EXISTS', child.key) == 1 then return {'REFUSED', 'session_exists', child.session, {}} end
  -- Its number was reserved, and Redis may have forgotten that and given it to somebody else.
  if redis.call('HEXISTS', KEYS[6], 's:' .. child.agent_id) == 1 then return {'REFUSED', 'agent_taken', child.agent_id, {}} end
  bad = birth_misfit(child)
  if bad then return bad end
end

-- 4. What will be true afterwards? (The release is decided here, before the first write.)
local old_seq, old_cursor, old_eq = num(own.seq), num(s[5]), num(s[6])
local tree_seq = num(redis.call('HGET', KEYS[6], 'tree_seq'))
if ahead(KEYS[2], old_seq) then return ahead_reply(KEYS[2], old_seq) end
if ahead(KEYS[3], old_eq) then return ahead_reply(KEYS[3], old_eq) end
if ahead(KEYS[4], own.n) then return ahead_reply(KEYS[4], own.n) end
if ahead(KEYS[5], tree_seq) then return ahead_reply(KEYS[5], tree_seq) end
local cursor = cursor_arg == '' and old_cursor or tonumber(cursor_arg)
if cursor < old_cursor or cursor > own.n then return {'REFUSED', 'cursor', text(own.n), {}} end
local read_to_end = cursor == own.n
local done = own.total
if not read_to_end then
  local first = redis.call('XRANGE', KEYS[4], '(' .. text(cursor) .. '-0', '+', 'COUNT', 1)[1]
  if not first then return {'CORRUPT', KEYS[4], 'it lacks entries after ' .. text(cursor)} end
  for i = 1, #first[2], 2 do
    if first[2][i] == 'b' then done = num(first[2][i + 1]) end
  end
end
local seq = old_seq + #entries
local head = #entries > 0 and entries[#entries][3] or s[4]

-- Depths first: an event that tells them is to tell what is true when it is seen.
own.regular = math.max(0, own.regular - taken_regular)
own.interrupts = math.max(0, own.interrupts - taken_interrupts)
targets[0].counted = taken_regular + taken_interrupts > 0
for _, m in ipairs(mail) do
  local target = targets[tonumber(m[1])]
  local lane = m[3] == '1' and 'interrupts' or 'regular'
  if m[5] == '1' then
    target.box[lane] = target.box[lane] + 1
    target.counted = true
  end
end
local depths = {}
for i = 0, #targets do
  local target = targets[i]
  if target.counted then
    depths[#depths + 1] = target[1] .. ':' .. text(target.box.regular) .. ':' .. text(target.box.interrupts)
  end
end
local stamp = table.concat(depths, ' ')

tree_events = unsaid(tree_events, KEYS[6])
for i, event in ipairs(tree_events) do
  event.payload = woven(event.parts, event.inbox ~= '' and targets[tonumber(event.inbox)].box)
  for _, row in ipairs(event.targets) do
    local told = targets[tonumber(row[1])].told
    told[#told + 1] = {event.payload, tree_seq + i, event.after}
  end
end
local watchers = {}
for _, target in ipairs(targets) do
  local box = target.box
  -- Who is gone needs not be told: the tree log has it.
  if #target.told > 0 and box and box.tree == tree and not box.archived then
    local at = redis.call('HMGET', target.key, 'eq', 'head')
    if ahead(target.eq, num(at[1])) then return ahead_reply(target.eq, num(at[1])) end
    watchers[#watchers + 1] = {key = target.key, eq = target.eq, n = num(at[1]), seq = box.seq, head = at[2], told = target.told}
  end
end

local eq = old_eq + #events + #targets[0].told
local tip = own.n + own.pending
local parks = release == 'park' and cursor == tip
local yields = release == 'yield'
local released = (parks or yields) and 1 or 0
local final_tree_seq = tree_seq + #tree_events
local result = text(eq) .. ' ' .. text(tip) .. ' ' .. released .. ' ' .. text(final_tree_seq)

-- 5. Write. HSET first: under maxmemory Redis refuses a script's first growing write and no later one.
local set = {'seq', text(seq), 'head', head, 'eq', text(eq), 'cursor', text(cursor), 'sq_done', text(done),
  'commit', commit_id, 'result', result}
if #entries > 0 or cursor > old_cursor or parks then
  set[#set + 1], set[#set + 2] = 'tries', '0'
end
if released == 1 then
  for _, value in ipairs({'owner', '', 'claim', ''}) do set[#set + 1] = value end
end
for _, row in ipairs(fields) do set[#set + 1], set[#set + 2] = row[1], row[2] end
redis.call('HSET', KEYS[1], unpack(set))
append_entries(KEYS[2], entries, old_seq, epoch)
own.seq = text(seq)
append_events(KEYS[3], with_told(events, targets[0].told, own.seq, head), old_eq, limits.eq_keep, limits.eq_ttl_ms)

if cursor > old_cursor then
  if read_to_end then
    redis.call('DEL', KEYS[4])
  else
    redis.call('XTRIM', KEYS[4], 'MINID', '=', text(cursor + 1) .. '-0')
  end
end

local pokes = {}
for _, m in ipairs(mail) do
  local entry = {kind = 'mail', payload = m[2], client = '', submission = m[4], sender = session, lane = m[3]}
  enqueue(targets[tonumber(m[1])].box, entry, now)
end
save_box(own)
for _, target in ipairs(targets) do
  local box = target.box
  if target.mailed then
    save_box(box)
    wake_if_parked(target[1], target.pool, KEYS[6], box.quarantined)
    if is_held(target[1], target.pool) then
      pokes[#pokes + 1], pokes[#pokes + 2] = target[1], box.owner
    end
  end
end
for i = 0, #targets do
  local box = targets[i].box
  if targets[i].counted then
    redis.call('HSET', KEYS[6], 'm:' .. box.agent_id, text(box.regular), 'i:' .. box.agent_id, text(box.interrupts))
  end
end

for _, child in ipairs(children) do
  write_birth(child, KEYS[6], KEYS[14], limits, now)
  -- A reservation that was forgotten holds from here on.
  if num(child.agent_id) > num(redis.call('HGET', KEYS[6], 'last_agent')) then
    redis.call('HSET', KEYS[6], 'last_agent', child.agent_id)
  end
end

for _, row in ipairs(timers_clear) do
  redis.call('ZREM', KEYS[11], session .. ':' .. row[1])
  redis.call('HDEL', KEYS[12], row[1])
end
for _, row in ipairs(timers_set) do
  redis.call('ZADD', KEYS[11], row[3], session .. ':' .. row[1])
  redis.call('HSET', KEYS[12], row[1], row[2] .. ':' .. row[4])
end

local cause = {session = session, seq = seq, head = head, depths = stamp}
for i, event in ipairs(tree_events) do
  log_event(KEYS[5], tree_seq + i, event, cause, now)
  if event.once ~= '' then redis.call('HSET', KEYS[6], 'said:' .. event.once, text(tree_seq + i)) end
end
for _, watcher in ipairs(watchers) do tell(watcher, watcher.told, limits) end
if #tree_events > 0 then redis.call('HSET', KEYS[6], 'tree_seq', text(final_tree_seq)) end
for _, row in ipairs(summary) do redis.call('HSET', KEYS[6], row[1], row[2]) end
for _, counter in ipairs(counters) do redis.call('HSET', KEYS[6], counter, text(drawn[counter])) end
local woken = 0
if budget then
  save_budget(budget, KEYS[6])
  if #settlements > 0 then use_by(own.agent_id, settled, KEYS[6]) end
  woken = wake_waiting(to_wake, KEYS[11], now)
end

for _, row in ipairs(approvals_close) do redis.call('HDEL', KEYS[13], session .. ':' .. row[1]) end
for _, row in ipairs(approvals_open) do
  redis.call('HSET', KEYS[13], session .. ':' .. row[1], text(now) .. ':' .. row[2])
end
redis.call('ZADD', KEYS[14], text(now), session)

if released == 1 then redis.call('ZREM', KEYS[8], session) end
if yields then make_due(session, pools[0], KEYS[6]) end
return {'OK', seq, head, tip, eq, released, final_tree_seq, now, pokes, woken, stamp, budget and accounts(budget) or {}}
