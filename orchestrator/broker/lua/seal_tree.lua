-- uses: base
-- takes: after# segment seen(entry)
-- gives: OK now# | REFUSED reason
--
-- The first entries of a tree's log go from the stream into a compressed segment beside it. Each is compared with what
-- the segment was made of: Redis may have gone back since, and given its number to another entry. Needs no claim:
-- entries never change, and who reads finds them in one place or the other (`read_tree`).
--
-- KEYS  1 tree stream   2 sealed_tree hash: number of its first entry -> segment; `index`, these numbers in their order;
--       `end`, the last entry that is sealed

local bad = misfit(KEYS[1], 'stream') or misfit(KEYS[2], 'hash')
if bad then return bad end
local known = fields_of(KEYS[2], {'end', 'index'})
if num(known['end']) ~= after then return {'REFUSED', 'sealed further already'} end
if #seen == 0 then return {'REFUSED', 'no entries'} end

-- An entry's id, fields and values, each with its length before it: no two entries have the same text.
local function entry_text(entry)
  local parts = {#entry[1], entry[1]}
  for _, part in ipairs(entry[2]) do
    parts[#parts + 1] = #part
    parts[#parts + 1] = part
  end
  return table.concat(parts, ':')
end

local entries = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', #seen)
if #entries ~= #seen then return {'REFUSED', 'the log is shorter'} end
for i, entry in ipairs(entries) do
  if entry_text(entry) ~= seen[i] then return {'REFUSED', 'the log has another entry'} end
end
local first = string.match(entries[1][1], '^%d+')
local last = num(string.match(entries[#entries][1], '^%d+'))
local index = known.index and known.index .. ' ' .. first or first

redis.call('HSET', KEYS[2], first, segment, 'index', index, 'end', text(last))
redis.call('XTRIM', KEYS[1], 'MINID', '=', text(last + 1) .. '-0')
return {'OK', now_ms()}
