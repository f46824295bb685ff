-- uses: base tree budget
-- raise_limits(change, eq_keep, eq_ttl_ms, adds(2), forgotten(1), tree events) -> OK now limits(flat) woken
--                                                   | DUP now limits(flat) 0 | UNKNOWN | CORRUPT key why
--
-- Moves limits of a tree and wakes whoever waits for room in its budgets. Once per change id. A budget
-- that the tree did not have begins at what is used by now; a limit that is none and no budget's stays
-- none. Events that were said once at the old limit may be said again.
--
-- KEYS  1 agents hash   2 tree stream   3 timers zset   4 root's session hash   5 root's eq stream

local change = take()
local limits = {eq_keep = text(take_number()), eq_ttl_ms = text(take_number())}
local adds, forgotten, events = take_list(2), take_list(1), take_tree_events()
for _, row in ipairs(adds) do
  row[2] = tonumber(row[2]) or error('MISCALL what is added is not a number')
end
all_taken()

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'stream') or misfit(KEYS[3], 'zset')
  or misfit(KEYS[4], 'hash') or misfit(KEYS[5], 'stream')
if bad then return bad end
local root = redis.call('HGET', KEYS[1], 'root')
if not root then return {'UNKNOWN'} end
local now = now_ms()
local found, raised = {}, {}
local used = used_so_far(KEYS[1], now)
local fresh = redis.call('HEXISTS', KEYS[1], 'raised:' .. change) == 0
for _, row in ipairs(adds) do
  local value = tonumber(redis.call('HGET', KEYS[1], 'limit:' .. row[1]) or '') or fresh and used[row[1]]
  if value then
    if fresh then value = math.max(0, value + row[2]) end
    raised[#raised + 1] = {row[1], value}
    found[#found + 1] = row[1]
    found[#found + 1] = value
  end
end
if not fresh then return {'DUP', now, found, 0} end

local tree_seq = num(redis.call('HGET', KEYS[1], 'tree_seq'))
if ahead(KEYS[2], tree_seq) then return ahead_reply(KEYS[2], tree_seq) end
local s = redis.call('HMGET', KEYS[4], 'seq', 'head', 'eq', 'archived')
local told = {}
events = unsaid(events, KEYS[1])
for i, event in ipairs(events) do
  event.payload = woven(event.parts)
  if #event.targets > 0 then told[#told + 1] = {event.payload, tree_seq + i} end
end
local watched = #told > 0 and s[1] and s[4] ~= '1'
if watched and ahead(KEYS[5], num(s[3])) then return ahead_reply(KEYS[5], num(s[3])) end

redis.call('HSET', KEYS[1], 'raised:' .. change, text(now), 'tree_seq', text(tree_seq + #events))
for _, row in ipairs(raised) do redis.call('HSET', KEYS[1], 'limit:' .. row[1], text(row[2])) end
for _, row in ipairs(forgotten) do redis.call('HDEL', KEYS[1], 'said:' .. row[1]) end
local cause = {session = root, seq = num(s[1]), head = s[2] or string.rep('\0', 32), depths = ''}
for i, event in ipairs(events) do
  log_event(KEYS[2], tree_seq + i, event, cause, now)
  if event.once ~= '' then redis.call('HSET', KEYS[1], 'said:' .. event.once, text(tree_seq + i)) end
end
if watched then tell({key = KEYS[4], eq = KEYS[5], n = num(s[3]), seq = s[1], head = s[2]}, told, limits) end
local waiting = redis.call('HMGET', KEYS[1], 'wait:reserved', 'wait:spent')
local woken = wake_waiting(waiting[1] or '', KEYS[3], now) + wake_waiting(waiting[2] or '', KEYS[3], now)
redis.call('HDEL', KEYS[1], 'wait:reserved', 'wait:spent')
return {'OK', now, found, woken}
