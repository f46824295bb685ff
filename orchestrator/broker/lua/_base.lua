-- gives: CORRUPT key why
-- Shared by every script: time, numbers, and the checks that come before the first write.
-- Redis does not roll a script back, so a script returns a code from here instead of
-- letting a write discover that a key is not what the catalogue (keys.py) says.

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- Lua prints large numbers as 1.7e+12; Redis would store that text. '%d' costs half of '%.0f', and holds 64 bits.
local function text(n)
  return string.format(n < 9e15 and n > -9e15 and '%d' or '%.0f', n)
end

local function num(value)
  return tonumber(value or 0) or 0
end

-- The first so many bytes of a text in UTF-8, without a part of a letter at its end.
local function beginning(whole, bytes)
  local kept = math.min(bytes, #whole)
  while kept > 0 and kept < #whole and math.floor(string.byte(whole, kept + 1) / 64) == 2 do kept = kept - 1 end
  return string.sub(whole, 1, kept)
end

local function misfit(key, wanted)
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= wanted then
    return {'CORRUPT', key, 'it is a ' .. kind .. ' where a ' .. wanted .. ' belongs'}
  end
end

-- What `look` reads and answers, its first answer a refusal or nothing. A key of another type is an error of the read,
-- which `misfits` then names: so only keys that are written and never read have to be asked for their type.
local function answered(misfits, read, ...)
  if read then return ... end
  return misfits() or error((...), 0)
end

local function looked(look, misfits)
  return answered(misfits, pcall(look))
end

-- True if the stream holds anything after entry n: XADD of n+1 would then fail half-way.
local function ahead(key, n)
  return #redis.call('XRANGE', key, '(' .. text(n) .. '-0', '+', 'COUNT', 1) > 0
end

local function ahead_reply(key, n)
  return {'CORRUPT', key, 'it holds entries after ' .. text(n) .. ', the last that the session knows'}
end

-- The place behind all that streams hold, for a read that is to find nothing of them.
local BEHIND_ALL = '18446744073709551615-18446744073709551615'

-- The same of several streams in one read: keys, and so many ends, each a number or BEHIND_ALL. The reply of the first
-- that is ahead, or nothing, and whether one more stream, that may be ahead, is. A key that is no stream is an error of
-- the read, whatever its end.
local function any_ahead(keys, ends, free, free_end)
  local words = {'COUNT', 1, 'STREAMS', unpack(keys)}
  words[#words + 1] = free
  for _, n in ipairs(ends) do words[#words + 1] = n == BEHIND_ALL and n or text(n) .. '-0' end
  if free then words[#words + 1] = text(free_end) .. '-0' end
  local found = redis.call('XREAD', unpack(words))
  -- A reply of nothing is false, and a table without anything where servers are doubled.
  if not found or not found[1] then return nil, false end
  for i, key in ipairs(keys) do
    if found[1][1] == key then return ahead_reply(key, ends[i]) end
  end
  return nil, found[#found][1] == free
end

-- The fields of a hash by their names; false where there is none.
local function fields_of(key, names)
  local found, values = {}, redis.call('HMGET', key, unpack(names))
  for i = 1, #names do found[names[i]] = values[i] end
  return found
end

-- A request to people was opened ('1') or is over ('0'): those who wait for it look at the shard's approvals.
local function notify_asked(asked, session, key, opened)
  redis.call('XADD', asked, 'MAXLEN', '~', 1024, '*', 's', session, 'k', key, 'o', opened)
end

-- No worker holds the session any more: those who wait for that look at the session.
local function notify_released(released, session)
  redis.call('XADD', released, 'MAXLEN', '~', 256, '*', 's', session)
end

-- Arguments are one flat list, read by what a script's head says that it takes. All are read before the
-- first write, so a caller of another version fails here and not half-way: a list is as long as what is there
-- at most, and at the end all must have been read, and no more.
local given, read_position = ARGV, 0

local function number_at(place)
  return tonumber(given[place]) or error('MISCALL argument ' .. place .. ' is not a number')
end

local function number_text_at(place)
  return number_at(place) and given[place]
end

local function take_number()
  read_position = read_position + 1
  return number_at(read_position)
end

-- How many rows follow, of so many arguments at least.
local function take_count(width)
  local count = take_number()
  if read_position + count * width > #given then error('MISCALL arguments are missing') end
  return count
end

local function all_taken()
  if read_position ~= #given then error('MISCALL there are ' .. #given .. ' arguments, and not ' .. read_position) end
end
