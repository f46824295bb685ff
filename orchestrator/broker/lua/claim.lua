-- uses: base fleet
-- takes: session pool worker claim core# lease_ms# certain_ms# whom page# max_tries# event eq_keep~ eq_ttl_ms~
-- takes: machine gone full leave_ms# roomless? passing(session) near_ms# attends?
-- gives: OK epoch# tree agent_id# seq# head! cursor# sq# snapshot_seq# tries# now# eq#,
-- gives:   queued{id! fields*} next commit abandoned
-- gives: NONE [next] | LEFT copy_on unsaved? wait_ms# next | OLD min_core# | QUARANTINED | UNKNOWN | MOVED tree pool | ARCHIVED
--
-- Gives the session to the worker if it is due, if its lease had run out by certain_ms, up to which the worker's
-- own clock bears this server's out (which may have been set while the lease ran), or (whom = parked: upkeep)
-- if it is parked and not archived. whom = next: only if nobody of the shard comes before it, by the order of `peek`;
-- the answer names who does. Whoever is claimed, the one that comes after it is named, too. Sent again
-- with the same claim id it answers as the first time. The claim that would be the max_tries-th without
-- progress quarantines the session instead: what kills every worker that touches it must not be handed
-- to the next one; `event` is the error event of that.
--
-- A portable session has a copy of its folder on one machine. Workers of another `machine` pass over it: for
-- leave_ms behind the first look, and as long as its changes are on that machine alone. Not where that machine is
-- `gone`, or a person has given those changes up; nor, if they are saved, where it is `full`. The machine that
-- failed to make the folder leaves it to others for as long. A `roomless` one leaves every portable session, but
-- for one whose changes it alone has. `passing`: sessions that the caller leaves, and that are named as next to nobody.
--
-- A worker that `attends` is told alone of what it had last (`wake`), and others pass over that for near_ms: it knows the
-- session's state already. Who asks with a near_ms of 0 passes over nothing.
--
-- KEYS  1 session hash   2 sq stream (read)   3 eq stream (the quarantine's error event)
--       4 due zset   5 leases zset   6 clock string   of the pool
--       7 changed stream: whose row in lists is another   8 watched stream: whether somebody follows that
--       9 sessions zset, by last change: of one that is quarantined

local function misfit_read()
  return misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'stream') or misfit(KEYS[3], 'stream')
    or misfit(KEYS[4], 'zset') or misfit(KEYS[5], 'zset') or misfit(KEYS[6], 'string')
    or misfit(KEYS[8], 'stream')
end

local unread = misfit(KEYS[9], 'zset')
if unread then return unread end

-- Everything else that is written is read before. `queued` is nothing where nothing waits.
local function look()
  local now = now_ms()
  local s = fields_of(KEYS[1], {'tree', 'pool', 'epoch', 'claim', 'agent_id', 'seq', 'head', 'cursor', 'sq', 'snapshot_seq',
    'tries', 'min_core', 'quarantined', 'archived', 'eq', 'owner', 'revoked', 'commit', 'copy_on', 'unsaved', 'failed_on',
    'left_ms', 'abandoned', 'last', 'due_ms'})
  local found = redis.call('XREAD', 'COUNT', page, 'STREAMS', KEYS[2], KEYS[3], KEYS[8], text(num(s.cursor)) .. '-0',
    BEHIND_ALL, text(followed_since(now)) .. '-0') or {}
  local queued, last = found[1], found[#found]
  local wrong = last and last[1] == KEYS[8] and tell_changes(KEYS[7])
  if wrong then return wrong end
  if queued and queued[1] ~= KEYS[2] then queued = nil end
  return nil, now, s, redis.call('ZSCORE', KEYS[4], session), redis.call('ZSCORE', KEYS[5], session),
    redis.call('GET', KEYS[6]), queued
end

local bad, now, s, order, expiry, clock, queued = looked(look, misfit_read)
if bad then return bad end
if not s.tree then
  -- Its hash is gone, so nobody can ever hold it: it must not be offered for ever.
  redis.call('ZREM', KEYS[4], session)
  redis.call('ZREM', KEYS[5], session)
  return {'UNKNOWN'}
end
if s.pool ~= pool then return {'MOVED', s.tree, s.pool} end
if s.quarantined == '1' then return {'NONE'} end
if num(s.min_core) > core then return {'OLD', num(s.min_core)} end
local certain = math.min(now, certain_ms)

local passed = {}
for _, one in ipairs(passing) do passed[one] = true end

-- Whether another worker alone was told of it, just now.
local function is_anothers(last, due_ms)
  local ago = now - num(due_ms)
  return ago >= 0 and ago < near_ms and (last or '') ~= '' and last ~= worker
end

local function is_left(member)
  if passed[member] then return true end
  if near_ms == 0 then return false end
  if member == session then return is_anothers(s.last, s.due_ms) end
  return is_anothers(unpack(redis.call('HMGET', string.sub(KEYS[1], 1, -#session - 1) .. member, 'last', 'due_ms')))
end

local function first_of(members, left)
  for _, member in ipairs(members) do
    if not left(member) then return member end
  end
end

local function next_claimable()
  return first_of(redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', text(certain), 'LIMIT', 0, #passing + 1),
      function(member) return passed[member] end)
    or first_of(redis.call('ZRANGE', KEYS[4], 0, #passing + 3), is_left) or ''
end

-- For how many milliseconds more this machine leaves the session to others; nothing if it may take it.
local function left_for()
  local on = s.copy_on or ''
  local elsewhere = on ~= '' and on ~= machine and on ~= gone
  local alone = s.unsaved == '1' and on == machine and (s.abandoned or '') == ''
  -- Only a portable session has the field.
  if roomless and s.copy_on and not alone then return math.max(leave_ms, 1) end
  if s.unsaved == '1' then return elsewhere and (s.abandoned or '') == '' and math.max(leave_ms, 1) or nil end
  local failed = machine ~= '' and s.failed_on == machine
  if not failed and (not elsewhere or on == full) then return end
  local since = num(s.left_ms)
  if since == 0 or since > now then
    since = now
    redis.call('HSET', KEYS[1], 'left_ms', text(now))
  end
  return since + leave_ms > now and since + leave_ms - now or nil
end

local function answer(epoch, tries)
  return {'OK', epoch, s.tree, num(s.agent_id), num(s.seq), s.head, num(s.cursor), num(s.sq), num(s.snapshot_seq), tries, now,
    num(s.eq), queued and queued[2] or {}, next_claimable(), s.commit or '', s.abandoned or ''}
end

if s.claim == claim and s.owner == worker then return answer(num(s.epoch), num(s.tries)) end
if whom == 'next' then
  local first = next_claimable()
  if first ~= session then return {'NONE', first} end
end
local idle = not order and not expiry
if expiry and tonumber(expiry) > certain then return {'NONE'} end
if idle and (whom ~= 'parked' or s.archived == '1') then return {'NONE'} end
if order and whom == '' and is_anothers(s.last, s.due_ms) then return {'NONE', next_claimable()} end
if s.archived == '1' then
  -- What is archived owes nothing, and cannot be held to find that out: it must not be offered for ever.
  redis.call('ZREM', KEYS[4], session)
  redis.call('ZREM', KEYS[5], session)
  return {'ARCHIVED'}
end
local wait_ms = whom ~= 'parked' and left_for()
if wait_ms then
  passed[session], passing[#passing + 1] = true, session
  return {'LEFT', s.copy_on or '', s.unsaved == '1' and 1 or 0, wait_ms, next_claimable()}
end

local epoch = num(s.epoch) + 1
-- A look of upkeep is no attempt at its work, be the session parked or due.
local tries = whom == 'parked' and num(s.tries) or num(s.tries) + 1
if tries >= max_tries then
  local n = num(s.eq) + 1
  if ahead(KEYS[3], n - 1) then return ahead_reply(KEYS[3], n - 1) end
  local hash8 = string.gsub(string.sub(s.head, 1, 4), '.', function(c) return string.format('%02x', string.byte(c)) end)
  redis.call('HSET', KEYS[1], 'quarantined', '1', 'epoch', text(epoch), 'owner', '', 'claim', '', 'eq', text(n))
  if s.revoked then redis.call('HDEL', KEYS[1], 'revoked') end
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', eq_keep, text(n) .. '-0', 'p', event, 's', s.seq, 'h', hash8, 't', text(now))
  redis.call('PEXPIRE', KEYS[3], eq_ttl_ms)
  redis.call('ZREM', KEYS[4], session)
  redis.call('ZREM', KEYS[5], session)
  redis.call('ZADD', KEYS[9], text(now), session)
  notify_changed(session)
  return {'QUARANTINED'}
end

local set = {'epoch', text(epoch), 'owner', worker, 'claim', claim, 'tries', text(tries)}
if attends or s.last then set[#set + 1], set[#set + 2] = 'last', attends and worker or '' end
redis.call('HSET', KEYS[1], unpack(set))
if s.left_ms then redis.call('HDEL', KEYS[1], 'left_ms') end
if s.revoked then redis.call('HDEL', KEYS[1], 'revoked') end
redis.call('ZADD', KEYS[5], text(now + lease_ms), session)
if order then
  redis.call('ZREM', KEYS[4], session)
  if tonumber(order) > num(clock) then redis.call('SET', KEYS[6], order) end
end
notify_changed(session)
return answer(epoch, tries)
