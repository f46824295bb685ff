-- Shared by scripts that write the tree log: events in one order, and those who are told of them.
-- A watcher is the event queue's side of a session: {key, eq, n, seq, head, keep}. Its payloads are
-- opaque; between the parts of one stand numbers that only the commit knows.

-- record tree_event: after# inbox once about salt parts(part) targets(target#)
-- Targets are told the event after so many of the step's own; `inbox` is the session whose depths stand between the
-- parts, or empty; with `once` it is written at most once under that name; `salt` is kept where it is not empty.

-- Those that will be written: an event with a name is not, if one of that name was. The name counts
-- from the first of one script on, so that a step may repeat itself.
local function unsaid(events, agents)
  local kept, said = {}, {}
  for _, event in ipairs(events) do
    local name = event.once
    if name == '' or not said[name] and redis.call('HEXISTS', agents, 'said:' .. name) == 0 then
      kept[#kept + 1] = event
      if name ~= '' then said[name] = true end
    end
  end
  return kept
end

-- Without a box the inbox is empty: of a session that this commit creates, or of one that is gone.
local function woven(parts, box)
  if #parts == 1 then return parts[1] end
  local found = {parts[1]}
  for i = 2, #parts do
    found[#found + 1] = box and text(i % 2 == 0 and box.regular or box.interrupts) or '0'
    found[#found + 1] = parts[i]
  end
  return table.concat(found)
end

local function hash8_of(head)
  return (string.gsub(string.sub(head, 1, 4), '.', function(c) return string.format('%02x', string.byte(c)) end))
end

-- cause: {session, seq, head, depths}
local function log_event(tree, tree_seq, event, cause, now)
  local fields = {'p', event.payload, 's', cause.session, 'q', text(cause.seq), 'h', cause.head, 'd', cause.depths,
    't', text(now), 'a', event.about}
  if event.salt ~= '' then
    fields[#fields + 1] = 'z'
    fields[#fields + 1] = event.salt
  end
  redis.call('XADD', tree, text(tree_seq) .. '-0', unpack(fields))
end

-- The session's own events, and among them those of the tree that it is told of, each in its place.
-- Own rows are {payload, seq, hash8}, told ones {payload, tree_seq, after}, by these names. A told one names the entry of
-- the row before it, and the last entry behind all rows: who comes back to it misses no entry of the rows behind it.
-- before, behind: {seq, head} of the log before and behind the step.
local function with_told(events, told, before, behind)
  if #told == 0 then return events end
  local merged, next_told = {}, 1
  for i = 0, #events do
    if i > 0 then merged[#merged + 1] = events[i] end
    local at = i == #events and behind or i == 0 and before
    local seq, hash8
    if at then
      seq, hash8 = text(at.seq), hash8_of(at.head)
    else
      seq, hash8 = events[i].seq, events[i].hash8
    end
    while told[next_told] and (told[next_told].after <= i or i == #events) do
      local row = told[next_told]
      merged[#merged + 1] = {payload = row.payload, seq = seq, hash8 = hash8, at_ms = '0', tree_seq = text(row.tree_seq)}
      next_told = next_told + 1
    end
  end
  return merged
end

-- rows: {payload, tree_seq}
local function tell(watcher, rows, limits, now)
  redis.call('HSET', watcher.key, 'eq', text(watcher.n + #rows))
  local hash8 = hash8_of(watcher.head)
  for i, row in ipairs(rows) do
    redis.call('XADD', watcher.eq, 'MAXLEN', '~', limits.eq_keep, text(watcher.n + i) .. '-0',
      'p', row.payload, 's', watcher.seq, 'h', hash8, 't', text(now), 'x', text(row.tree_seq))
  end
  redis.call('PEXPIRE', watcher.eq, limits.eq_ttl_ms)
end
