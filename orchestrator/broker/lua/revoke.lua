-- uses: base fleet wake
-- takes: tree silent certain_ms# pools(name) sessions(session pool#) abandons
-- gives: OK now# found(state epoch# worker) | MOVED tree pool session
--
-- Takes claims from whoever holds them: the epoch grows, and nobody may write. A lease that has run out
-- by certain_ms (see `claim`) goes with the claim, and the session is due. One that has not stays, under its owner's
-- name: what the holder started may run until then, and the next holder must not run beside it; `release` cuts it short.
-- With `silent` (milliseconds, else empty) only claims whose lease ran out that long ago, and nothing else is touched; without,
-- also nobody's, and the quarantined are readmitted. All of one tree, at one moment.
-- `abandons` names a person who gives up changes of the sessions' folders that no store has: other machines may claim
-- them, and the next holder goes on without. A session whose folder is stored is `saved`, and left as it is.
--
-- KEYS  1 agents hash   2 changed stream   3… four keys (due, leases, ready, clock) for each pool, then the session hashes

local silent_ms = silent ~= '' and (tonumber(silent) or error('MISCALL silent_ms is not a number'))
local next_key = 3
for i, name in ipairs(pools) do
  pools[i] = fixed_pool(name, next_key)
  next_key = next_key + 4
end
for i, row in ipairs(sessions) do
  row.key = KEYS[next_key + i - 1]
  row.pool = pools[row.pool] or error('MISCALL there is no pool ' .. row.pool)
end

local bad = misfit(KEYS[1], 'hash') or tell_changes(KEYS[2])
if bad then return bad end
for _, pool in ipairs(pools) do
  bad = pool_misfit(pool)
  if bad then return bad end
end
local now = now_ms()
local certain = math.min(now, certain_ms)
for _, row in ipairs(sessions) do
  bad = misfit(row.key, 'hash')
  if bad then return bad end
  local s = fields_of(row.key, {'tree', 'pool', 'epoch', 'quarantined', 'owner', 'claim', 'unsaved'})
  if s.tree and (s.tree ~= tree or s.pool ~= row.pool.name) then return {'MOVED', s.tree, s.pool, row.session} end
  local expiry = tonumber(redis.call('ZSCORE', row.pool.leases, row.session) or '')
  row.epoch, row.worker, row.state = num(s.epoch), s.owner or '', 'free'
  if expiry then row.state = (not silent_ms or expiry + silent_ms <= certain) and 'revoked' or 'held' end
  if not s.tree then row.state = 'gone' end
  if s.tree and abandons ~= '' and s.unsaved ~= '1' then row.state = 'saved' end
  row.abandoned = abandons ~= '' and s.tree and s.unsaved == '1'
  row.takes = row.state == 'revoked' or row.state == 'free' and not silent_ms
  row.claim = expiry and expiry > certain and (s.claim or '')
  if row.takes and row.claim == '' then row.takes = false end  -- revoked before: nothing is left to take
  row.owed = expiry or s.quarantined == '1'
    or row.abandoned and not redis.call('ZSCORE', row.pool.due, row.session)
end

local found = {}
for _, row in ipairs(sessions) do
  if row.abandoned then redis.call('HSET', row.key, 'abandoned', abandons) end
  if row.takes then
    row.epoch = row.epoch + 1
    redis.call('HSET', row.key, 'epoch', text(row.epoch), 'claim', '', 'quarantined', '', 'tries', '0')
    if row.claim then
      redis.call('HSET', row.key, 'revoked', row.claim)
    else
      redis.call('HSET', row.key, 'owner', '')
      redis.call('HDEL', row.key, 'revoked')
      redis.call('ZREM', row.pool.leases, row.session)
      if row.owed then make_due(row.session, row.pool, KEYS[1]) end
    end
    notify_changed(row.session)
  end
  found[#found + 1] = row.state
  found[#found + 1] = row.epoch
  found[#found + 1] = row.worker
end
return {'OK', now, found}
