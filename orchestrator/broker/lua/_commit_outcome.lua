-- What will be true behind a commit, known before its first write: positions, depths of inboxes, who is told of
-- what, and whether the session is given back.

-- The fields of the queue's first entry in a range by their names; nothing if there is none.
local function entry_in(from, to)
  local entry = redis.call('XRANGE', KEYS[4], from, to, 'COUNT', 1)[1]
  if not entry then return nil end
  local f = {}
  for i = 1, #entry[2], 2 do f[entry[2][i]] = entry[2][i + 1] end
  return f
end

-- How many bytes the queue's consumed entries had, once it is read to this cursor; or a refusal.
local function done_at(own, cursor)
  if cursor == own.n then return nil, own.total end
  local first = entry_in('(' .. text(cursor) .. '-0', '+')
  if not first then return {'CORRUPT', KEYS[4], 'it lacks entries after ' .. text(cursor)} end
  return nil, first.b and num(first.b) or own.total
end

-- Whether the entry at the cursor is the one that was read.
local function is_as_read(cursor)
  local at = text(cursor) .. '-0'
  local entry = entry_in(at, at)
  return entry ~= nil and entry.t .. ':' .. entry.u == cursor_mark
end

-- Depths of every inbox that the step fills or empties, as text; the boxes have them from here on.
local function count_inboxes(own)
  own.regular = math.max(0, own.regular - taken_regular)
  own.interrupts = math.max(0, own.interrupts - taken_interrupts)
  targets[0].counted = taken_regular + taken_interrupts > 0
  for _, m in ipairs(mail) do
    local target = targets[m.to]
    local lane = m.interrupt == '1' and 'interrupts' or 'regular'
    if m.counted then
      target.box[lane] = target.box[lane] + 1
      target.counted = true
    end
  end
  local depths = {}
  for i = 0, #targets do
    local target = targets[i]
    if target.counted then
      depths[#depths + 1] = target.session .. ':' .. text(target.box.regular) .. ':' .. text(target.box.interrupts)
    end
  end
  return table.concat(depths, ' ')
end

-- The tree's events as they will be written, each with its payload and listed for its targets.
local function weave_tree_events(tree_seq)
  tree_events = unsaid(tree_events, KEYS[6])
  for i, event in ipairs(tree_events) do
    event.payload = woven(event.parts, event.inbox ~= '' and targets[tonumber(event.inbox)].box)
    for _, number in ipairs(event.targets) do
      local told = targets[number].told
      told[#told + 1] = {payload = event.payload, tree_seq = tree_seq + i, after = event.after}
    end
  end
end

-- The event queues of others that are told; or a refusal.
local function find_watchers()
  local watchers = {}
  for _, target in ipairs(targets) do
    local box = target.box
    -- Who is gone needs not be told: the tree log has it.
    if #target.told > 0 and box and box.tree == tree and not box.archived then
      local at = fields_of(target.key, {'eq', 'head'})
      if ahead(target.eq, num(at.eq)) then return ahead_reply(target.eq, num(at.eq)) end
      watchers[#watchers + 1] = {
        key = target.key, eq = target.eq, n = num(at.eq), seq = box.seq, head = at.head, told = target.told,
      }
    end
  end
  return nil, watchers
end

-- The value that the step gives to a field of the session's hash; nothing if it gives none.
local function given_field(name)
  for _, field in ipairs(fields) do
    if field.name == name then return field.value end
  end
end

-- What the agents of the tree are at behind the step; nothing if that stays, or the tree's root does not count them.
local function states_behind(own, known)
  local status = given_field('status') or known.status
  if status == known.status and #children == 0 then return end
  local states = known.states
  if session ~= tree then states = redis.call('HGET', KEYS[22], 'states') end
  if not states then return end
  if status ~= known.status then states = with_status(states, own.agent_id, known.status, status) end
  for _, child in ipairs(children) do
    states = with_agent(states, child.agent_id, child.parent == session and own.agent_id or '', child.status)
  end
  return states
end

-- The refusal, or nothing and the outcome by its names.
local function outcome_of(own, known, now)
  local old_seq, old_cursor, old_eq = num(own.seq), num(known.cursor), num(known.eq)
  local old_tree_seq = num(redis.call('HGET', KEYS[6], 'tree_seq'))
  local torn, followed = any_ahead({KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[9], KEYS[16], KEYS[19]},
    {old_seq, old_eq, own.n, old_tree_seq, BEHIND_ALL, BEHIND_ALL, BEHIND_ALL}, KEYS[21], followed_since(now))
  torn = torn or followed and tell_changes(KEYS[20])
  if torn then return torn end
  local cursor = cursor_arg == '' and old_cursor or tonumber(cursor_arg)
  local lost = cursor < old_cursor or cursor > own.n
  lost = lost or cursor > old_cursor and cursor_mark ~= '' and not is_as_read(cursor)
  if lost then return {'REFUSED', 'cursor', text(own.n), {}} end
  local refused, done, watchers
  refused, done = done_at(own, cursor)
  if refused then return refused end
  -- Depths first: an event that tells them is to tell what is true when it is seen.
  local depths = count_inboxes(own)
  weave_tree_events(old_tree_seq)
  refused, watchers = find_watchers()
  if refused then return refused end
  local tip = own.n + own.pending
  local parks = release == 'park' and cursor == tip
  local yields = release == 'yield'
  -- It was used if something came in, or it came to rest: the steps between change no list.
  local used = cursor > old_cursor or parks or yields
  return nil, {
    old_seq = old_seq, old_eq = old_eq, old_tree_seq = old_tree_seq, old_cursor = old_cursor,
    seq = old_seq + #entries, head = #entries > 0 and entries[#entries].chain or known.head,
    eq = old_eq + #events + #targets[0].told, tree_seq = old_tree_seq + #tree_events,
    cursor = cursor, done = done, tip = tip, depths = depths, watchers = watchers,
    parks = parks, yields = yields, released = parks or yields, moves = used and index_moves(known, now),
    states = states_behind(own, known),
  }
end
