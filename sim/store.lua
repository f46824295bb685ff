-- The commands of Redis that the product says, on values in memory.
--
-- A function of the interpreter's own, so that a script's calls never leave it. Takes nothing; returns what
-- store.py says: run, say, clear, and what it reads beside the commands. Replies are those that Redis gives
-- to a script: strings, numbers, tables of them, false where nothing is, {ok = …}. A command that is not
-- here is refused, as one is that meets a value of another type. Where Redis may trim a stream less than it
-- was asked to (`~`), this trims exactly.

local raw_pairs, format, sort = pairs, string.format, table.sort
local insert, remove, huge = table.insert, table.remove, math.huge
local floor, ceil = math.floor, math.ceil
local MOST_WORDS = 5000
-- Runs are short: translating them to machine code costs more than it saves.
if jit then jit.off() end

local WRONG_TYPE = 'WRONGTYPE Operation against a key holding the wrong kind of value'
local NOT_A_FLOAT = 'ERR value is not a valid float'
local BAD_ID = 'ERR Invalid stream ID specified as stream command argument'
local SYNTAX = 'ERR syntax error'
local STALE_ID = 'ERR The ID specified in XADD is equal or smaller than the target stream top item'

local OK = {ok = 'OK'}
local NO_TYPE = {ok = 'none'}
local TYPES = {}
for _, kind in ipairs({'string', 'hash', 'set', 'zset', 'stream', 'list'}) do TYPES[kind] = {ok = kind} end

local values, expires_us, now_us, writes
-- By key, the number of its last change, counted over all keys.
local changes, last_change

local function clear()
  values, expires_us, now_us, writes, changes, last_change = {}, {}, 0, 0, {}, 0
  -- Between two simulations there is least to look through; while one runs, next to nothing would be freed.
  collectgarbage()
  collectgarbage('setpause', 2000)
end

local function change(key)
  last_change = last_change + 1
  changes[key] = last_change
end

local function wrote(key)
  writes = writes + 1
  change(key)
end

-- ── keys ─────────────────────────────────────────────────────────────────────────────────────────

local function drop(key)
  local had = values[key] ~= nil
  values[key], expires_us[key] = nil, nil
  change(key)
  return had
end

-- A key's value, if it has not expired.
local function found(key)
  local at = expires_us[key]
  if at and at <= now_us then drop(key) end
  return values[key]
end

local function of(kind, key)
  local value = values[key]
  if value and expires_us[key] then value = found(key) end
  if value and value.kind ~= kind then error(WRONG_TYPE, 0) end
  return value
end

local function number(word)
  return tonumber(word) or error(NOT_A_FLOAT, 0)
end

local command = {}

function command.TYPE(key)
  local value = values[key]
  if value and expires_us[key] then value = found(key) end
  return value and TYPES[value.kind] or NO_TYPE
end

function command.EXISTS(...)
  local n = 0
  for _, key in ipairs({...}) do
    if found(key) then n = n + 1 end
  end
  return n
end

function command.DEL(...)
  local gone = 0
  for _, key in ipairs({...}) do
    if found(key) and drop(key) then gone = gone + 1 end
  end
  if gone > 0 then writes = writes + 1 end
  return gone
end

function command.PEXPIRE(key, after_ms)
  if not found(key) then return 0 end
  expires_us[key] = now_us + tonumber(after_ms) * 1000
  wrote(key)
  return 1
end

function command.PERSIST(key)
  if not found(key) or not expires_us[key] then return 0 end
  expires_us[key] = nil
  wrote(key)
  return 1
end

function command.EXPIRE(key, after_s)
  return command.PEXPIRE(key, tonumber(after_s) * 1000)
end

function command.TIME()
  local us = now_us % 1000000
  return {format('%.0f', (now_us - us) / 1000000), format('%.0f', us)}
end

-- ── strings ──────────────────────────────────────────────────────────────────────────────────────

function command.GET(key)
  local value = of('string', key)
  return value and value.text or false
end

function command.SET(key, text, option, after_ms)
  if option and option ~= 'NX' and not (option == 'PX' and tonumber(after_ms)) then error(SYNTAX, 0) end
  if option == 'NX' and found(key) then return false end
  drop(key)
  values[key] = {kind = 'string', text = text}
  if option == 'PX' then expires_us[key] = now_us + tonumber(after_ms) * 1000 end
  wrote(key)
  return OK
end

-- ── hashes: `names` has the fields in the order in which they came, `set` after how many writes each was set ──

function command.HSET(key, ...)
  local hash = of('hash', key)
  if not hash then
    hash = {kind = 'hash', fields = {}, names = {}, set = {}, began = writes + 1}
    values[key] = hash
  end
  local fields, names, set, words = hash.fields, hash.names, hash.set, {...}
  local before = #names
  wrote(key)
  hash.changed = writes
  for i = 1, #words, 2 do
    local name = words[i]
    if fields[name] == nil then names[#names + 1] = name end
    fields[name], set[name] = words[i + 1], writes
    if #words[i + 1] > 64 or #name > 64 then hash.hashed = true end
  end
  if #names > 128 then hash.hashed = true end
  return #names - before
end

function command.HSETNX(key, name, value)
  local hash = of('hash', key)
  if hash and hash.fields[name] ~= nil then return 0 end
  return command.HSET(key, name, value)
end

function command.HGET(key, name)
  local hash = of('hash', key)
  return hash and hash.fields[name] or false
end

function command.HMGET(key, ...)
  local hash, reply = of('hash', key), {...}
  local fields = hash and hash.fields
  for i = 1, #reply do reply[i] = fields and fields[reply[i]] or false end
  return reply
end

-- The fields of a small hash come in their order, those of a large one in that of Redis's table: in any, the same
-- one each time.
local function names_of(hash)
  if not hash.hashed then return hash.names end
  if hash.shuffled_at ~= #hash.names then
    local mixed, by = {}, {}
    for i, name in ipairs(hash.names) do
      local sum = 7
      for at = 1, #name do sum = (sum * 31 + string.byte(name, at)) % 65521 end
      mixed[i], by[name] = name, sum * 40503 % 65537
    end
    sort(mixed, function(a, b)
      if by[a] ~= by[b] then return by[a] < by[b] end
      return a < b
    end)
    hash.mixed, hash.shuffled_at = mixed, #hash.names
  end
  return hash.mixed
end

function command.HGETALL(key)
  local hash, reply = of('hash', key), {}
  if hash then
    for i, name in ipairs(names_of(hash)) do reply[2 * i - 1], reply[2 * i] = name, hash.fields[name] end
  end
  return reply
end

function command.HLEN(key)
  local hash = of('hash', key)
  return hash and #hash.names or 0
end

function command.HKEYS(key)
  local hash, reply = of('hash', key), {}
  for i, name in ipairs(hash and names_of(hash) or {}) do reply[i] = name end
  return reply
end

function command.HEXISTS(key, name)
  local hash = of('hash', key)
  return hash and hash.fields[name] ~= nil and 1 or 0
end

function command.HDEL(key, ...)
  local hash, gone = of('hash', key), 0
  if not hash then return 0 end
  for _, name in ipairs({...}) do
    if hash.fields[name] ~= nil then
      hash.fields[name], gone = nil, gone + 1
      for i, other in ipairs(hash.names) do
        if other == name then
          remove(hash.names, i)
          hash.shuffled_at = nil
          break
        end
      end
    end
  end
  if gone > 0 then wrote(key) end
  hash.changed, hash.began = writes, writes
  if #hash.names == 0 then drop(key) end
  return gone
end

function command.HINCRBY(key, name, amount)
  local value = tonumber(command.HGET(key, name) or 0) + tonumber(amount)
  command.HSET(key, name, format('%.0f', value))
  return value
end

-- ── sets ─────────────────────────────────────────────────────────────────────────────────────────

-- The next three are of tests alone.
function command.RENAME(key, name)
  local value, expires = found(key), expires_us[key]
  if not value then error('ERR no such key', 0) end
  drop(key)
  drop(name)
  values[name], expires_us[name] = value, expires
  wrote(name)
  return OK
end

-- No key of the product is a list: tests put one where a script expects something else.
function command.RPUSH(key, ...)
  local list = of('list', key)
  if not list then
    list = {kind = 'list', items = {}}
    values[key] = list
  end
  for _, item in ipairs({...}) do list.items[#list.items + 1] = item end
  wrote(key)
  return #list.items
end

function command.LRANGE(key)
  local list = of('list', key)
  return list and list.items or {}
end

function command.SADD(key, ...)
  local set, added = of('set', key), 0
  if not set then
    set = {kind = 'set', members = {}}
    values[key] = set
  end
  for _, member in ipairs({...}) do
    if not set.members[member] then set.members[member], added = true, added + 1 end
  end
  if added > 0 then wrote(key) end
  return added
end

-- In the order of their bytes: a table's own order is another one in each process.
function command.SMEMBERS(key)
  local set, reply = of('set', key), {}
  if set then
    for member in raw_pairs(set.members) do reply[#reply + 1] = member end
    sort(reply)
  end
  return reply
end

-- ── sorted sets: `order` has the members by score, and by their bytes where scores are equal ─────

-- Where a member with a score stands, or would stand: '' before all of that score, nil behind them.
local function rank_of(zset, score, member)
  local order, scores = zset.order, zset.scores
  local low, high = 1, #order + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local other = order[middle]
    local at = scores[other]
    if at < score or (at == score and (not member or other < member)) then low = middle + 1 else high = middle end
  end
  return low
end

local function put_member(zset, score, member)
  local old = zset.scores[member]
  if old == score then return false end
  if old then remove(zset.order, rank_of(zset, old, member)) end
  insert(zset.order, rank_of(zset, score, member), member)
  zset.scores[member] = score
  return not old
end

-- With `NX` or `XX` in front, or neither.
function command.ZADD(key, ...)
  local words, first, added = {...}, 1, 0
  local only = (words[1] == 'NX' or words[1] == 'XX') and words[1]
  if only then first = 2 end
  local zset = of('zset', key)
  for i = first, #words, 2 do
    local score, member = number(words[i]), words[i + 1]
    local there = zset and zset.scores[member] ~= nil or false
    if not only or there == (only == 'XX') then
      if not zset then
        zset = {kind = 'zset', scores = {}, order = {}}
        values[key] = zset
      end
      if put_member(zset, score, member) then added = added + 1 end
      wrote(key)
    end
  end
  return added
end

function command.ZREM(key, ...)
  local zset, gone = of('zset', key), 0
  if not zset then return 0 end
  for _, member in ipairs({...}) do
    local score = zset.scores[member]
    if score then
      remove(zset.order, rank_of(zset, score, member))
      zset.scores[member], gone = nil, gone + 1
    end
  end
  if gone > 0 then wrote(key) end
  if #zset.order == 0 then drop(key) end
  return gone
end

local function score_text(score)
  return format('%.17g', score)
end

function command.ZSCORE(key, member)
  local zset = of('zset', key)
  local score = zset and zset.scores[member]
  return score and score_text(score) or false
end

-- The place of a member in the order; false if it is not there.
function command.ZRANK(key, member)
  local zset = of('zset', key)
  for at, one in ipairs(zset and zset.order or {}) do
    if one == member then return at - 1 end
  end
  return false
end

function command.ZCARD(key)
  local zset = of('zset', key)
  return zset and #zset.order or 0
end

-- Ranks begin with 0, and negative ones count from the end.
local function ranked(zset, first, last, step, with_scores)
  local reply, size = {}, #zset.order
  first, last = tonumber(first), tonumber(last)
  if first < 0 then first = math.max(0, first + size) end
  if last < 0 then last = last + size end
  for rank = first, math.min(last, size - 1) do
    local member = zset.order[step > 0 and rank + 1 or size - rank]
    reply[#reply + 1] = member
    if with_scores then reply[#reply + 1] = score_text(zset.scores[member]) end
  end
  return reply
end

function command.ZRANGE(key, first, last, with_scores)
  local zset = of('zset', key)
  return zset and ranked(zset, first, last, 1, with_scores) or {}
end

function command.ZREVRANGE(key, first, last, with_scores)
  local zset = of('zset', key)
  return zset and ranked(zset, first, last, -1, with_scores) or {}
end

function command.ZRANGEBYSCORE(key, low, high, ...)
  local zset, reply, words = of('zset', key), {}, {...}
  local with_scores = words[1] == 'WITHSCORES'
  if with_scores then table.remove(words, 1) end
  local limit, offset, count = unpack(words)
  if not zset then return reply end
  local first, last = rank_of(zset, number(low), ''), rank_of(zset, number(high)) - 1
  if limit then
    first = first + tonumber(offset)
    last = math.min(last, first + tonumber(count) - 1)
  end
  for rank = first, last do
    reply[#reply + 1] = zset.order[rank]
    if with_scores then reply[#reply + 1] = score_text(zset.scores[zset.order[rank]]) end
  end
  return reply
end

-- A bound of scores; `(` in front leaves that score itself out.
local function scores_behind(zset, word, is_upper)
  local excluded = string.sub(word, 1, 1) == '('
  local score = number(excluded and string.sub(word, 2) or word)
  return rank_of(zset, score, is_upper == excluded and '' or nil)
end

function command.ZCOUNT(key, low, high)
  local zset = of('zset', key)
  return zset and math.max(0, scores_behind(zset, high, true) - scores_behind(zset, low, false)) or 0
end

-- Between members, where all scores are equal; `[` and `(` in front take the bound itself in, or leave it out.
local function between(key, low, high, step, ...)
  local zset, reply, words = of('zset', key), {}, {...}
  if not zset then return reply end
  local offset, count = tonumber(words[2] or 0), tonumber(words[3] or -1)
  local from, to = string.sub(low, 2), string.sub(high, 2)
  local above, below = string.sub(low, 1, 1) == '(', string.sub(high, 1, 1) == '('
  local size = #zset.order
  for rank = 1, size do
    local member = zset.order[step > 0 and rank or size + 1 - rank]
    local behind = member > from or (member == from and not above)
    if behind and (member < to or (member == to and not below)) then
      if offset > 0 then offset = offset - 1
      elseif count < 0 or #reply < count then reply[#reply + 1] = member
      else break end
    end
  end
  return reply
end

function command.ZRANGEBYLEX(key, low, high, ...)
  return between(key, low, high, 1, ...)
end

function command.ZREVRANGEBYLEX(key, high, low, ...)
  return between(key, low, high, -1, ...)
end

function command.ZREMRANGEBYSCORE(key, low, high)
  return command.ZREM(key, unpack(command.ZRANGEBYSCORE(key, low, high)))
end

-- ── streams: entries `first` to `last` of three lists; ids only grow ─────────────────────────────

local function id_text(ms, n)
  return format('%.0f-%.0f', ms, n)
end

-- The parts of ids that were read. The same few are said again and again.
local read_ms, read_n, ids_read = {}, {}, 0

local function id_of(word, n_if_missing)
  local ms, n = read_ms[word], read_n[word]
  if ms then return ms, n or n_if_missing end
  ms, n = string.match(word, '^(%d+)%-(%d+)$')
  ms = ms or string.match(word, '^%d+$') or error(BAD_ID, 0)
  ms, n = tonumber(ms), n and tonumber(n)
  if ids_read == MOST_WORDS then read_ms, read_n, ids_read = {}, {}, 0 end
  read_ms[word], read_n[word], ids_read = ms, n, ids_read + 1
  return ms, n or n_if_missing
end

-- The place behind all entries whose id is below this one, or up to it.
local function place(stream, ms, n, inclusive)
  local all_ms, all_n = stream.ms, stream.n
  local low, high = stream.first, stream.last + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local at_ms, at_n = all_ms[middle], all_n[middle]
    local is_below = at_ms < ms or (at_ms == ms and (at_n < n or (inclusive and at_n == n)))
    if is_below then low = middle + 1 else high = middle end
  end
  return low
end

local function cut(key, stream, first)
  local gone = math.max(0, first - stream.first)
  for i = stream.first, first - 1 do stream.ms[i], stream.n[i], stream.ids[i], stream.rows[i] = nil, nil, nil, nil end
  stream.first = stream.first + gone
  if gone > 0 then wrote(key) end
  return gone
end

local function made_stream(key)
  local stream = of('stream', key)
  if not stream then
    stream = {kind = 'stream', ms = {}, n = {}, ids = {}, rows = {}, first = 1, last = 0, top_ms = 0, top_n = 0}
    values[key] = stream
  end
  return stream
end

-- With `MAXLEN [~|=] n` in front, or without.
function command.XADD(key, ...)
  if ... == 'NOMKSTREAM' then
    if not found(key) then return false end
    return command.XADD(key, select(2, ...))
  end
  local id, second, third, fourth = ...
  local at, most = 1, nil
  if id == 'MAXLEN' then
    if second == '~' or second == '=' then
      at, most, id = 4, tonumber(third), fourth
    else
      at, most, id = 3, tonumber(second), third
    end
  end
  local stream = made_stream(key)
  local ms, n
  if id == '*' then
    ms, n = floor(now_us / 1000), 0
    if ms <= stream.top_ms then ms, n = stream.top_ms, stream.top_n + 1 end
  else
    ms, n = id_of(id, 0)
  end
  if ms < stream.top_ms or (ms == stream.top_ms and n <= stream.top_n) then error(STALE_ID, 0) end
  local last, text = stream.last + 1, id_text(ms, n)
  stream.ms[last], stream.n[last], stream.ids[last], stream.rows[last] = ms, n, text, {select(at + 1, ...)}
  stream.last, stream.top_ms, stream.top_n = last, ms, n
  if most then cut(key, stream, last - most + 1) end
  wrote(key)
  return text
end

function command.XTRIM(key, strategy, ...)
  local stream = of('stream', key)
  if not stream then return 0 end
  local words = {...}
  local threshold = words[#words]
  if strategy == 'MINID' then
    local ms, n = id_of(threshold, 0)
    return cut(key, stream, place(stream, ms, n, false))
  end
  return cut(key, stream, stream.last - tonumber(threshold) + 1)
end

-- Of one entry: what is behind it moves up.
function command.XDEL(key, word)
  local stream = of('stream', key)
  if not stream then return 0 end
  local ms, n = id_of(word, 0)
  local at = place(stream, ms, n, false)
  if at > stream.last or stream.ms[at] ~= ms or stream.n[at] ~= n then return 0 end
  for i = at, stream.last do
    stream.ms[i], stream.n[i], stream.ids[i], stream.rows[i] = stream.ms[i + 1], stream.n[i + 1], stream.ids[i + 1],
      stream.rows[i + 1]
  end
  stream.last = stream.last - 1
  wrote(key)
  return 1
end

function command.XLEN(key)
  local stream = of('stream', key)
  return stream and stream.last - stream.first + 1 or 0
end

-- One end of a range: `-`, `+`, an id, or `(` and an id that is left out itself; the place of the first
-- entry from there on (for a lower end), or behind the last one up to there.
local function bound(stream, word, is_upper)
  if word == '-' then return stream.first end
  if word == '+' then return stream.last + 1 end
  local excluded = string.sub(word, 1, 1) == '('
  local ms, n = id_of(excluded and string.sub(word, 2) or word, is_upper and huge or 0)
  return place(stream, ms, n, is_upper ~= excluded)
end

local function entry(stream, at)
  return {stream.ids[at], stream.rows[at]}
end

function command.XRANGE(key, low, high, _, count)
  local stream, reply = of('stream', key), {}
  if not stream then return reply end
  local first, behind = bound(stream, low, false), bound(stream, high, true)
  if count then behind = math.min(behind, first + tonumber(count)) end
  for at = first, behind - 1 do reply[#reply + 1] = entry(stream, at) end
  return reply
end

function command.XREVRANGE(key, high, low, _, count)
  local stream, reply = of('stream', key), {}
  if not stream then return reply end
  local first, behind = bound(stream, low, false), bound(stream, high, true)
  if count then first = math.max(first, behind - tonumber(count)) end
  for at = behind - 1, first, -1 do reply[#reply + 1] = entry(stream, at) end
  return reply
end

-- Without `BLOCK`: who waits is the network's business.
function command.XREAD(...)
  local words, reply, most, at = {...}, {}, huge, 1
  while words[at] ~= 'STREAMS' do
    if words[at] == 'COUNT' then most = tonumber(words[at + 1]) end
    at = at + 1
  end
  local half = (#words - at) / 2
  for i = at + 1, at + half do
    local stream = of('stream', words[i])
    if stream and words[i + half] ~= '$' then
      local ms, n = id_of(words[i + half], 0)
      local first = place(stream, ms, n, true)
      local rows = {}
      for row = first, math.min(stream.last, first + most - 1) do rows[#rows + 1] = entry(stream, row) end
      if #rows > 0 then reply[#reply + 1] = {words[i], rows} end
    end
  end
  return #reply > 0 and reply
end

-- ── what is said ─────────────────────────────────────────────────────────────────────────────────

-- Scripts may give numbers; Redis has but strings. Most calls have few words, and are looked at without a table.
local function call(name, ...)
  local known = command[name] or error('ERR unknown command ' .. tostring(name), 0)
  local first, second, third = ...
  if select('#', ...) <= 3 and type(first) ~= 'number' and type(second) ~= 'number' and type(third) ~= 'number' then
    return known(...)
  end
  local words, changed = {...}, false
  for i = 1, #words do
    if type(words[i]) == 'number' then words[i], changed = format('%.17g', words[i]), true end
  end
  if changed then return known(unpack(words)) end
  return known(...)
end

-- What a script finds. It may set no global, and read none that does not exist: a server refuses both. It may
-- not go through a table by its keys either: their order would be chance's choice, and not the seed's.
-- luacheck: push globals pairs next redis
pairs = function() error("the order of a table's keys is another one in each process") end
next = pairs
redis = {call = call}
-- luacheck: pop
setmetatable(_G, {
  __newindex = function(_, name) error('a script may not set the global variable ' .. tostring(name)) end,
  __index = function(_, name) error('there is no global variable ' .. tostring(name)) end,
})

-- A reply is handed out flat, in one step: a list is `true`, its length and its items; nothing is false. The
-- length is negative where all items are strings and numbers. It ends at its first nil, wherever Lua thinks that
-- it does. Writes from a place of `flat` on, and answers the place behind.
local function flatten(value, flat, at)
  local kind = type(value)
  if kind == 'number' then
    flat[at] = value < 0 and ceil(value) or floor(value)
    return at + 1
  elseif kind ~= 'table' then
    flat[at] = value == true and 1 or value or false
    return at + 1
  elseif value.err then
    error(value.err, 0)
  elseif value.ok then
    flat[at] = value.ok
    return at + 1
  end
  local length, n, sign, item = at + 1, 0, -1, value[1]
  flat[at], flat[length], at = true, 0, at + 2
  while item ~= nil do
    kind = type(item)
    if kind == 'string' then
      flat[at], at = item, at + 1
    else
      if kind ~= 'number' then sign = 1 end
      at = flatten(item, flat, at)
    end
    n = n + 1
    item = value[n + 1]
  end
  flat[length] = sign * n
  return at
end

-- What fits onto Lua's stack by itself, else in a table.
local function told(reply)
  local kind = type(reply)
  if kind == 'string' or not reply then return writes, reply or false end
  local flat = {}
  local size = flatten(reply, flat, 1) - 1
  if size > MOST_WORDS then return writes, flat end
  return writes, unpack(flat, 1, size)
end

local function run_with(now, script, keys, argv)
  now_us = now
  rawset(_G, 'KEYS', keys)
  rawset(_G, 'ARGV', argv)
  return told(script())
end

-- With so many arguments, and the keys behind them.
local function run(now, script, count, ...)
  local argv, keys = {...}, {}
  for i = count + 1, #argv do keys[i - count], argv[i] = argv[i], nil end
  return run_with(now, script, keys, argv)
end

local function say(now, name, ...)
  now_us = now
  return told(call(name, ...))
end

-- Commands that count what they do with each word, or each two, behind a key.
local COUNT = {SADD = true, HSET = true, HDEL = true, ZREM = true}

-- With so many words, in a table: in parts, at one moment.
local function say_with(now, words)
  local name, key, count = words[1], words[2], 0
  if not COUNT[name] then error('ERR too many words for ' .. name, 0) end
  now_us = now
  for first = 3, #words, MOST_WORDS do
    count = count + call(name, key, unpack(words, first, math.min(first + MOST_WORDS - 1, #words)))
  end
  return told(count)
end

-- ── beside the commands ──────────────────────────────────────────────────────────────────────────

local reads = {}

function reads.writes()
  return writes
end

-- When a hash changed last, whether all of it follows, and fields and values in turn: those that were set since it
-- was read, or all if any is gone since then. Nothing but the first if it is as it was.
function reads.hash(key, known)
  local hash = values[key]
  if not hash or hash.kind ~= 'hash' then return 0 end
  if hash.changed == known then return known end
  local flat, fields, set, at, whole = {}, hash.fields, hash.set, 0, known < hash.began
  for _, name in ipairs(hash.names) do
    if whole or set[name] > known then
      flat[at + 1], flat[at + 2], at = name, fields[name], at + 2
    end
  end
  return hash.changed, whole, unpack(flat, 1, at)
end

-- When a key expires, in microseconds; 0 if it has by now or is not there, and nil if it never does.
function reads.expires(key, now)
  local at = expires_us[key]
  if not values[key] or (at and at <= now) then return 0 end
  return at
end

function reads.score(key, member)
  local zset = values[key]
  return zset and zset.scores and zset.scores[member] or nil
end

-- The lowest score of a sorted set; nil where nothing is.
function reads.least(key)
  local zset = of('zset', key)
  return zset and zset.scores[zset.order[1]] or nil
end

-- When a sorted set changed last, and its scores and members in turn; nothing but that if it is as it was then.
function reads.members(key, known)
  local zset, reply, at = values[key], {}, changes[key] or 0
  if at == known then return at end
  for i, member in ipairs(zset and zset.order or {}) do
    reply[2 * i - 1], reply[2 * i] = zset.scores[member], member
  end
  return at, unpack(reply)
end

-- When each key changed last, behind a number that keeps one from standing alone.
function reads.changes(...)
  local keys = {...}
  for i = 1, #keys do keys[i] = changes[keys[i]] or 0 end
  return 0, unpack(keys)
end

-- Up to `most` entries of a stream behind `n`-`part`: each its id, how many words follow, and these.
function reads.entries(key, after, part, most)
  local stream, reply = values[key], {}
  if not stream or stream.kind ~= 'stream' then return 0 end
  local first = place(stream, after, part, true)
  local ids, rows, size = stream.ids, stream.rows, 0
  for at = first, math.min(stream.last, first + most - 1) do
    local row = rows[at]
    local words = #row
    reply[size + 1], reply[size + 2], size = ids[at], words, size + 2
    for i = 1, words do reply[size + i] = row[i] end
    size = size + words
  end
  return size, unpack(reply, 1, size)
end

-- Whether any of these streams has an entry behind the id that follows its key.
function reads.goes_on(now, ...)
  now_us = now
  local words = {...}
  for i = 1, #words, 2 do
    local stream, id = of('stream', words[i]), words[i + 1]
    local last = stream and stream.last
    if stream and id ~= '$' and last >= stream.first then
      local ms, n = id_of(id, 0)
      if stream.ms[last] > ms or (stream.ms[last] == ms and stream.n[last] > n) then return true end
    end
  end
  return false
end

-- How long a stream is, its last number, and when it expires.
function reads.stream(key, now)
  local stream, at = values[key], expires_us[key]
  if not stream or stream.kind ~= 'stream' or (at and at <= now) then return 0, 0, false end
  return stream.last - stream.first + 1, stream.top_ms, at or false
end

function reads.text(key)
  local value = values[key]
  return value and value.text or nil
end

function reads.set(key)
  return command.SMEMBERS(key)
end

-- How many bytes the words of a value have, a number of a sorted set as eight.
local function weight(value)
  local size = value.text and #value.text or 0
  for _, name in ipairs(value.names or {}) do size = size + #name + #value.fields[name] end
  for _, member in ipairs(value.order or {}) do size = size + #member + 8 end
  for member in raw_pairs(value.members or {}) do size = size + #member end
  for at = value.first or 1, value.rows and value.last or 0 do
    size = size + #value.ids[at]
    for _, word in ipairs(value.rows[at]) do size = size + #word end
  end
  return size
end

-- Every key that has not expired, in their order, each with the bytes of its name and its value; behind a number.
function reads.weights(now)
  now_us = now
  local keys, reply = {}, {}
  for key in raw_pairs(values) do keys[#keys + 1] = key end
  sort(keys)
  for _, key in ipairs(keys) do
    local value = found(key)
    if value then reply[#reply + 1], reply[#reply + 2] = key, #key + weight(value) end
  end
  return reply
end

-- Every key in their order, each with the words of its value in one text; behind a number.
function reads.words()
  local keys, reply = {}, {}
  for key in raw_pairs(values) do keys[#keys + 1] = key end
  sort(keys)
  for _, key in ipairs(keys) do
    local value, all = values[key], {}
    all[1] = value.text
    for _, name in ipairs(value.names or {}) do all[#all + 1], all[#all + 2] = name, value.fields[name] end
    for _, member in ipairs(value.order or {}) do all[#all + 1] = member end
    for member in raw_pairs(value.members or {}) do all[#all + 1] = member end
    for at = value.first or 1, value.rows and value.last or 0 do
      for _, word in ipairs(value.rows[at]) do all[#all + 1] = word end
    end
    reply[#reply + 1], reply[#reply + 2] = key, table.concat(all, '\n')
  end
  return reply
end

-- Counts the calls of scripts from now on, those that ask for many keys at once by these; answers who tells the count.
function reads.counted()
  local calls = 0
  rawset(redis, 'call', function(name, ...)
    calls = calls + (name == 'EXISTS' and select('#', ...) or 1)
    return call(name, ...)
  end)
  return function() return calls end
end

clear()
return {run, run_with}, {say, say_with}, clear, reads
