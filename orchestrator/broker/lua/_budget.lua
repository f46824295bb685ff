-- row account: kind spent~ held# limit% guessed#
-- Shared by scripts that touch a tree's budgets: what was used, what is held, what is allowed.
-- Amounts are {tokens, cost, requests}; fields of agents:<tree> are listed in tree_records.py.
-- Whoever waits for room is written down with a timer, and waking is to make that timer due: one
-- more write to a key that every commit has, whoever waits, and it survives whoever wakes.

local KINDS = {'tokens', 'cost', 'requests'}

local function parse_amount(stored)
  local tokens, cost, requests = string.match(stored or '', '^(%d+) (%d+) (%d+)$')
  if not tokens then return nil end
  return {tonumber(tokens), tonumber(cost), tonumber(requests)}
end

local function amount_text(amount)
  return text(amount[1]) .. ' ' .. text(amount[2]) .. ' ' .. text(amount[3])
end

-- With an agent's number its own use is read, too.
local function read_budget(agents, now, agent_id)
  local user = 'u:' .. (agent_id or '')
  local f = redis.call('HMGET', agents, 'spent:tokens', 'spent:cost', 'spent:requests', 'held:tokens', 'held:cost',
    'held:requests', 'guessed:tokens', 'guessed:cost', 'guessed:requests', 'limit:tokens', 'limit:cost',
    'limit:requests', 'limit:wall', 'wall_from', 'wait:reserved', 'wait:spent', user, 'recent')
  return {
    spent = {num(f[1]), num(f[2]), num(f[3])}, held = {num(f[4]), num(f[5]), num(f[6])},
    guessed = {num(f[7]), num(f[8]), num(f[9])}, limit = {tonumber(f[10] or ''), tonumber(f[11] or ''), tonumber(f[12] or '')},
    wall_limit = tonumber(f[13] or ''), wall = f[14] and now - num(f[14]) or 0,
    waiting = {reserved = f[15] or '', spent = f[16] or ''}, waited = {reserved = f[15], spent = f[16]},
    user = user, used = parse_amount(f[17]) or {0, 0, 0}, recent = f[18], changed = {}, gone = {}, touched = {},
  }
end

-- By kind, what a budget that begins now begins with.
local function used_so_far(agents, now)
  local budget = read_budget(agents, now)
  local used = {wall = budget.wall}
  for i, kind in ipairs(KINDS) do used[kind] = budget.spent[i] end
  return used
end

-- Why the amount may not be reserved, or nothing. A cost below zero is one that nobody knows. With nothing
-- held it may although it does not fit: nobody's end could ever make room for it, and something is left.
local function no_room(budget, amount)
  if budget.limit[2] and amount[2] < 0 then return 'unpriced', 'cost' end
  for i, kind in ipairs(KINDS) do
    if budget.limit[i] and budget.spent[i] >= budget.limit[i] then return 'spent', kind end
  end
  if budget.wall_limit and budget.wall >= budget.wall_limit then return 'spent', 'wall' end
  for i, kind in ipairs(KINDS) do
    local asked = budget.spent[i] + budget.held[i] + math.max(0, amount[i])
    if budget.limit[i] and asked > budget.limit[i] and budget.held[i] > 0 then return 'reserved', kind end
  end
end

-- What is held for a request, so that reserving it again does not count twice.
local function held_for(budget, field, agents)
  return not budget.gone[field] and parse_amount(redis.call('HGET', agents, field)) or {0, 0, 0}
end

local function let_go(budget, reserved)
  for i = 1, 3 do budget.held[i] = math.max(0, budget.held[i] - reserved[i]) end
end

-- The order of a table's keys is no order: what is written follows that of the requests.
local function touch(budget, field)
  budget.touched[#budget.touched + 1] = field
end

local function hold(budget, field, amount)
  amount[2] = math.max(0, amount[2])
  for i = 1, 3 do budget.held[i] = budget.held[i] + amount[i] end
  budget.changed[field] = amount_text(amount)
  touch(budget, field)
end

-- used nil: what was reserved, as an estimate. Answers what was counted.
local function settle(budget, field, agents, used)
  local reserved = held_for(budget, field, agents)
  local counted = used or reserved
  budget.gone[field] = true
  touch(budget, field)
  let_go(budget, reserved)
  for i = 1, 3 do
    budget.spent[i] = budget.spent[i] + counted[i]
    if not used then budget.guessed[i] = budget.guessed[i] + counted[i] end
  end
  return counted
end

-- `recent`: how many requests of the tree ended in each of the last twelve five minutes, `<five minutes since 1970>
-- <count of those> <count of the ones before> …`. Of what comes after an hour, or by a clock that was put back by one,
-- nothing before is kept.
local RECENT_MS, RECENT_SLOTS = 300000, 12

local function with_recent(recent, requests, now)
  local slot = math.floor(now / RECENT_MS)
  local newest, count, before = string.match(recent or '', '^(%d+) (%d+)(.*)$')
  local passed = newest and slot - tonumber(newest) or RECENT_SLOTS
  if math.abs(passed) >= RECENT_SLOTS then return text(slot) .. ' ' .. text(requests) end
  if passed <= 0 then return newest .. ' ' .. text(tonumber(count) + requests) .. before end
  local behind, left = string.rep(' 0', passed - 1) .. ' ' .. count .. before, RECENT_SLOTS - 1
  local kept = string.gsub(behind, ' %d+', function(one)
    left = left - 1
    return left >= 0 and one or ''
  end)
  return text(slot) .. ' ' .. text(requests) .. kept
end

-- What the tree's accounts are from now on: fields to set, and fields that go. `settled` is what the agent used.
local function save_budget(budget, agents, settled, now)
  local set, gone = {}, {}
  for i, kind in ipairs(KINDS) do
    for _, name in ipairs({'spent', 'held', 'guessed'}) do
      set[#set + 1], set[#set + 2] = name .. ':' .. kind, text(budget[name][i])
    end
  end
  for _, field in ipairs(budget.touched) do
    if budget.changed[field] then
      set[#set + 1], set[#set + 2] = field, budget.changed[field]
    else
      gone[#gone + 1] = field
    end
  end
  for _, why in ipairs({'reserved', 'spent'}) do
    local list = budget.waiting[why]
    if list ~= '' then
      set[#set + 1], set[#set + 2] = 'wait:' .. why, list
    elseif budget.waited[why] then
      gone[#gone + 1] = 'wait:' .. why
    end
  end
  if settled then
    for i = 1, 3 do budget.used[i] = budget.used[i] + settled[i] end
    set[#set + 1], set[#set + 2] = budget.user, amount_text(budget.used)
    if settled[3] > 0 then set[#set + 1], set[#set + 2] = 'recent', with_recent(budget.recent, settled[3], now) end
  end
  redis.call('HSET', agents, unpack(set))
  if #gone > 0 then redis.call('HDEL', agents, unpack(gone)) end
end

-- A day's usage is a hash: amounts by namespace, model and person, a line each, and `n`, how many there are. So many
-- are kept apart; what comes behind them is counted for its namespace alone, and what comes behind twice as many
-- for nobody: a client may name any model, and the day has a bound.
local MOST_USERS, MOST_USER = 500, 200

-- The amount of one user, as the step has it so far; nothing if the day has none.
local function used_on(day, key, user)
  if not day.amounts[user] then
    local stored = redis.call('HMGET', key, user, 'n')
    if not day.n then day.n, day.is_new = num(stored[2]), not stored[2] end
    local amount = parse_amount(stored[1])
    if not amount then return nil end
    day.amounts[user], day.users[#day.users + 1] = amount, user
  end
  return day.amounts[user]
end

-- `by`: namespace, model and person.
local function use_on(day, key, by, counted)
  local users = {by[1] .. '\n' .. by[2] .. '\n' .. beginning(by[3], MOST_USER), by[1] .. '\n\n', '\n\n'}
  local before, user
  for i = 1, #users do
    user = users[i]
    before = used_on(day, key, user)
    if before or day.n < i * MOST_USERS then break end
  end
  if not before then
    before, day.n = {0, 0, 0}, day.n + 1
    day.amounts[user], day.users[#day.users + 1] = before, user
  end
  for i = 1, 3 do before[i] = before[i] + counted[i] end
end

local function save_day(day, key, kept_ms)
  local set = {'n', text(day.n)}
  for _, user in ipairs(day.users) do set[#set + 1], set[#set + 2] = user, amount_text(day.amounts[user]) end
  redis.call('HSET', key, unpack(set))
  if day.is_new then redis.call('PEXPIRE', key, kept_ms) end
end

local function listed(list, member)
  if string.find(' ' .. list .. ' ', ' ' .. member .. ' ', 1, true) then return list end
  return list == '' and member or list .. ' ' .. member
end

-- Makes due the timers of a list 'session:timer session:timer …'; XX: who stopped waiting cleared its own.
local function wake_waiting(list, timers, now)
  local woken = 0
  for member in string.gmatch(list, '%S+') do
    redis.call('ZADD', timers, 'XX', text(now), member)
    woken = woken + 1
  end
  return woken
end

local function accounts(budget)
  local found = {}
  for i, kind in ipairs(KINDS) do
    found[i] = {kind, budget.spent[i], budget.held[i], budget.limit[i] or '', budget.guessed[i]}
  end
  found[4] = {'wall', budget.wall, 0, budget.wall_limit or '', 0}
  return found
end
