-- Shared by every script that appends to a submission queue.
-- A box is the queue's side of a session: {key, sq, n, total, done, seq, regular, interrupts, …}.
-- n numbers the entries (ids are n-0), total counts the payload bytes ever enqueued, done those
-- that a commit has consumed; so the queue's size is known without reading it.

-- The box, and behind it the values of further fields of the hash; nothing if the session is gone.
local function read_box(key, sq, ...)
  local f = redis.call('HMGET', key, 'tree', 'pool', 'seq', 'sq', 'sq_total', 'sq_done', 'owner', 'quarantined', 'archived',
    'regular', 'interrupts', 'agent_id', 'last', ...)
  if not f[1] then return nil end
  return {
    key = key, sq = sq, tree = f[1], pool = f[2], seq = f[3], n = num(f[4]), total = num(f[5]), done = num(f[6]),
    owner = f[7] or '', quarantined = f[8] or '', archived = f[9] == '1',
    regular = num(f[10]), interrupts = num(f[11]), agent_id = f[12], last = f[13], pending = 0,
    pending_bytes = 0,
  }, unpack(f, 14)
end

local function has_room(box, bytes, max_entries, max_bytes)
  local entries = redis.call('XLEN', box.sq) + box.pending
  local held = box.total - box.done + box.pending_bytes
  return entries < max_entries and held + bytes <= max_bytes
end

-- entry: {kind, payload, client, submission, sender, generation, lane, by}
local function enqueue(box, entry, now)
  box.n = box.n + 1
  local fields = {'k', entry.kind, 'p', entry.payload, 'c', entry.client, 'u', entry.submission, 'f', entry.sender,
    'q', box.seq, 't', text(now), 'b', text(box.total), 'g', entry.generation or '0', 'i', entry.lane or '0'}
  if entry.by and entry.by ~= '' then
    fields[#fields + 1], fields[#fields + 2] = 'a', entry.by
  end
  redis.call('XADD', box.sq, text(box.n) .. '-0', unpack(fields))
  box.total = box.total + #entry.payload
  return box.n
end

local function save_box(box)
  redis.call('HSET', box.key, 'sq', text(box.n), 'sq_total', text(box.total),
    'regular', text(box.regular), 'interrupts', text(box.interrupts))
end
