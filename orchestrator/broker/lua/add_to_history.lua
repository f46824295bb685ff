-- uses: base
-- takes: key session entry fresh_id most# most_bytes#
-- gives: OK DUP n# now#
--
-- Appends one prompt to a person's history, once under its key. The oldest go while there are too many, or
-- too many bytes, and their keys with them. An entry keeps its number when older ones go.
--
-- KEYS  1 history:<name> stream (n-0 -> session, time, text, key)
--       2 history_keys:<name> hash (id, count ever written, bytes kept, k:<key> -> n, or 0 where none may come)

local MOST_AT_ONCE = 64

local bad = misfit(KEYS[1], 'stream') or misfit(KEYS[2], 'hash')
if bad then return bad end
local now = now_ms()
local s = fields_of(KEYS[2], {'count', 'bytes', 'k:' .. key})
if s['k:' .. key] then return {'DUP', num(s['k:' .. key]), now} end
local n, bytes = num(s.count) + 1, #entry + num(s.bytes)
if ahead(KEYS[1], n - 1) then return ahead_reply(KEYS[1], n - 1) end

redis.call('XADD', KEYS[1], text(n) .. '-0', 's', session, 't', text(now), 'x', entry, 'k', key)
redis.call('HSET', KEYS[2], 'k:' .. key, text(n))
redis.call('HSETNX', KEYS[2], 'id', fresh_id)
for _ = 1, MOST_AT_ONCE do
  local left = redis.call('XLEN', KEYS[1])
  -- An earlier version forgot prompts and not their bytes: they take no room from the one that comes.
  if left == 1 then bytes = #entry end
  if left <= most and bytes <= most_bytes then break end
  local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  bytes = bytes - #oldest[2][6]
  redis.call('HDEL', KEYS[2], 'k:' .. oldest[2][8])
  redis.call('XTRIM', KEYS[1], 'MINID', text(num(string.match(oldest[1], '^%d+')) + 1))
end
redis.call('HSET', KEYS[2], 'count', text(n), 'bytes', text(bytes))
return {'OK', n, now}
