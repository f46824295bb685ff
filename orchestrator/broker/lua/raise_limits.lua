-- uses: base tree budget
-- takes: change eq_keep~ eq_ttl_ms~ adds(kind amount#) forgotten(name) events(<tree_event>)
-- gives: OK DUP now# found(kind limit#) woken# | UNKNOWN
--
-- Moves limits of a tree and wakes whoever waits for room in its budgets. Once per change id. A budget
-- that the tree did not have begins at what is used by now; a limit that is none and no budget's stays
-- none. No addition brings a limit beyond MOST_LIMIT: each was looked at by itself before, and others came between.
-- Events that were said once at the old limit may be said again. Beside the event the tree's log gets the
-- limits before (null: there was none) and behind: {"limits":{"tokens":[100,300]}}.
--
-- KEYS  1 agents hash   2 tree stream   3 timers zset   4 root's session hash   5 root's eq stream


-- With what is used beside it, a number that is still held exactly.
local MOST_LIMIT = 4503599627370496
local limits = {eq_keep = eq_keep, eq_ttl_ms = eq_ttl_ms}
local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'stream') or misfit(KEYS[3], 'zset')
  or misfit(KEYS[4], 'hash') or misfit(KEYS[5], 'stream')
if bad then return bad end
local root = redis.call('HGET', KEYS[1], 'root')
if not root then return {'UNKNOWN'} end
local now = now_ms()
local found, raised, noted = {}, {}, {}
local used = used_so_far(KEYS[1], now)
local fresh = redis.call('HEXISTS', KEYS[1], 'raised:' .. change) == 0
for _, row in ipairs(adds) do
  local was = tonumber(redis.call('HGET', KEYS[1], 'limit:' .. row.kind) or '')
  local value = was or fresh and used[row.kind]
  if value then
    if fresh then
      local moved = value + row.amount
      value = row.amount > 0 and math.max(value, math.min(moved, MOST_LIMIT)) or math.max(0, moved)
      noted[#noted + 1] = '"' .. row.kind .. '":[' .. (was and text(was) or 'null') .. ',' .. text(value) .. ']'
    end
    raised[#raised + 1] = {kind = row.kind, limit = value}
    found[#found + 1] = row.kind
    found[#found + 1] = value
  end
end
if not fresh then return {'DUP', now, found, 0} end

local tree_seq = num(redis.call('HGET', KEYS[1], 'tree_seq'))
if ahead(KEYS[2], tree_seq) then return ahead_reply(KEYS[2], tree_seq) end
local s = fields_of(KEYS[4], {'seq', 'head', 'eq', 'archived'})
local told = {}
events = unsaid(events, KEYS[1])
for i, event in ipairs(events) do
  event.payload = woven(event.parts)
  if event.about == '' then event.about = '{"limits":{' .. table.concat(noted, ',') .. '}}' end
  if #event.targets > 0 then told[#told + 1] = {payload = event.payload, tree_seq = tree_seq + i} end
end
local watched = #told > 0 and s.seq and s.archived ~= '1'
if watched and ahead(KEYS[5], num(s.eq)) then return ahead_reply(KEYS[5], num(s.eq)) end

redis.call('HSET', KEYS[1], 'raised:' .. change, text(now), 'tree_seq', text(tree_seq + #events))
for _, row in ipairs(raised) do redis.call('HSET', KEYS[1], 'limit:' .. row.kind, text(row.limit)) end
for _, name in ipairs(forgotten) do redis.call('HDEL', KEYS[1], 'said:' .. name) end
local cause = {session = root, seq = num(s.seq), head = s.head or string.rep('\0', 32), depths = ''}
for i, event in ipairs(events) do
  log_event(KEYS[2], tree_seq + i, event, cause, now)
  if event.once ~= '' then redis.call('HSET', KEYS[1], 'said:' .. event.once, text(tree_seq + i)) end
end
if watched then tell({key = KEYS[4], eq = KEYS[5], n = num(s.eq), seq = s.seq, head = s.head}, told, limits, now) end
local waiting = redis.call('HMGET', KEYS[1], 'wait:reserved', 'wait:spent')
local woken = wake_waiting(waiting[1] or '', KEYS[3], now) + wake_waiting(waiting[2] or '', KEYS[3], now)
redis.call('HDEL', KEYS[1], 'wait:reserved', 'wait:spent')
return {'OK', now, found, woken}
